// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// filterTimeout is the default time that kube-scheduler allows the allocator for one node.
const filterTimeout = 10 * time.Second

// claimsCase is many questions of one kind; `features` is "default" (those that kube-scheduler enables by default) or
// "all" (those that the allocator supports, in another implementation of it).
type claimsCase struct {
	header
	Features string      `json:"features"`
	Asked    []rawClaims `json:"asked"`
}

// rawClaims: `claims` are the unallocated claims of one pod, `allocated` are all allocated claims.
type rawClaims struct {
	Node      json.RawMessage   `json:"node"`
	Slices    []json.RawMessage `json:"slices"`
	Classes   []json.RawMessage `json:"classes"`
	Claims    []json.RawMessage `json:"claims"`
	Allocated []json.RawMessage `json:"allocated"`
}

type claims struct {
	node      *v1.Node
	slices    []*resourceapi.ResourceSlice
	classes   []*resourceapi.DeviceClass
	claims    []*resourceapi.ResourceClaim
	allocated []*resourceapi.ResourceClaim
}

// allocateAnswer: `answers` are in the order of the questions.
type allocateAnswer struct {
	ID      string       `json:"id"`
	Answers []allocation `json:"answers"`
}

// allocation: `allocations` has one for each claim. `reason` is why this node cannot be searched, if the cause is
// another one than claims that do not fit; `error` is what ends the search on every node.
type allocation struct {
	Fits        bool                           `json:"fits"`
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Reason      string                         `json:"reason,omitempty"`
	Error       string                         `json:"error,omitempty"`
}

// allocator is an allocator with its features, and the selectors that it has compiled.
type allocator struct {
	features  structured.Features
	selectors *dracel.Cache
}

var allocators = sync.OnceValue(func() map[string]allocator {
	all := structured.Features{}
	for fields, i := reflect.ValueOf(&all).Elem(), 0; i < fields.NumField(); i++ {
		fields.Field(i).SetBool(true)
	}
	return map[string]allocator{
		"default": {schedulerFeatures(), schedulerSelectors()},
		"all":     {all, newSelectors(all)},
	}
})

// never is a client that gets no request: only listers that stay empty use it.
var never = sync.OnceValues(func() (informers.SharedInformerFactory, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{})
	return informers.NewSharedInformerFactory(client, 0), err
})

// allocate answers the question "allocate": can a node serve the claims of a pod, and with which devices?
func allocate(w *worker, line []byte) (any, error) {
	var c claimsCase
	if err := readOne("case", line, &c); err != nil {
		return nil, err
	}
	chosen, known := allocators()[c.Features]
	if !known {
		return nil, fmt.Errorf("features: %q is neither default nor all", c.Features)
	}
	answer := &allocateAnswer{ID: c.ID, Answers: make([]allocation, len(c.Asked))}
	for i, raw := range c.Asked {
		asked, err := raw.read(fmt.Sprintf("asked[%d].", i))
		if err == nil {
			answer.Answers[i], err = chosen.allocate(w.ctx, asked)
		}
		if err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func (raw *rawClaims) read(at string) (*claims, error) {
	c := &claims{node: &v1.Node{}}
	if err := readOne(at+"node", raw.Node, c.node); err != nil {
		return nil, err
	}
	for _, err := range []error{
		readAll(at+"slices", raw.Slices, &c.slices),
		readAll(at+"classes", raw.Classes, &c.classes),
		readAll(at+"claims", raw.Claims, &c.claims),
		readAll(at+"allocated", raw.Allocated, &c.allocated),
	} {
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (a allocator) allocate(ctx context.Context, c *claims) (allocation, error) {
	state, err := allocatedState(ctx, c.allocated)
	if err != nil {
		return allocation{}, err
	}
	classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := replace(classes, c.classes); err != nil {
		return allocation{}, err
	}
	lister := resourcelisters.NewDeviceClassLister(classes)
	made, err := structured.NewAllocator(ctx, a.features, *state, classLister{lister}, c.slices, a.selectors)
	if err != nil {
		return allocation{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, filterTimeout)
	defer cancel()
	results, err := made.Allocate(ctx, c.node, c.claims)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return allocation{Reason: err.Error()}, nil
	case err != nil:
		return allocation{Error: err.Error()}, nil
	}
	return allocation{Fits: len(results) == len(c.claims), Allocations: results}, nil
}

// allocatedState is what is allocated in kube-scheduler's own view of the claims.
func allocatedState(ctx context.Context, allocated []*resourceapi.ResourceClaim) (*structured.AllocatedState, error) {
	factory, err := never()
	if err != nil {
		return nil, err
	}
	seen := assumecache.NewAssumeCache(klog.FromContext(ctx), nil, "ResourceClaim", "", nil)
	manager := dynamicresources.NewDRAManager(ctx, seen, nil, factory)
	for _, claim := range allocated {
		assumecache.AddTestObject(seen, claim)
	}
	return manager.ResourceClaims().GatherAllocatedState()
}

// classLister is the allocator's source of device classes.
type classLister struct {
	resourcelisters.DeviceClassLister
}

func (l classLister) List() ([]*resourceapi.DeviceClass, error) {
	return l.DeviceClassLister.List(labels.Everything())
}
