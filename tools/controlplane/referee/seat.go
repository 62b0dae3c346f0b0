// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// openGates enables features that this release has off by default and that the comparison covers.
func openGates() error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		"TaintTolerationComparisonOperators": true,
	})
}

// seat is kube-scheduler with its default profile, complete but not running: nothing watches, nothing is scheduled.
// A case's objects are added directly to the stores of its informers, its cache and its queue, and removed afterwards.
type seat struct {
	ctx       context.Context
	close     context.CancelFunc
	scheduler *scheduler.Scheduler
	profile   framework.Framework
	snapshot  *internalcache.Snapshot
	stores    stores
	plugins   []fwk.Plugin
}

type stores struct {
	nodes, pods, namespaces, volumes, claims, classes             cache.Indexer
	csiNodes, csiDrivers, csiStorageCapacities, volumeAttachments cache.Indexer
}

func newSeat(parent context.Context) (*seat, error) {
	ctx, cancel := context.WithCancel(parent)
	// The client gets no request: informers that are not started only keep the objects that are added.
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		cancel()
		return nil, err
	}
	factory := scheduler.NewInformerFactory(client, 0, nil)
	snapshot := internalcache.NewEmptySnapshot()
	recorders := func(string) events.EventRecorderLogger { return events.NewFakeRecorder(0) }
	sched, err := scheduler.New(ctx, client, factory, nil, recorders,
		scheduler.WithNodeInfoSnapshot(snapshot), scheduler.WithParallelism(1))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("making the scheduler: %w", err)
	}
	made := &seat{ctx: ctx, close: cancel, scheduler: sched, snapshot: snapshot, stores: storesOf(factory)}
	made.profile = sched.Profiles[v1.DefaultSchedulerName]
	// In-tree plugins register the events that requeue their pods, so this list has each of them once, in no order.
	for _, plugin := range made.profile.EnqueueExtensions() {
		made.plugins = append(made.plugins, plugin)
	}
	slices.SortFunc(made.plugins, func(a, b fwk.Plugin) int { return strings.Compare(a.Name(), b.Name()) })
	return made, nil
}

func storesOf(factory informers.SharedInformerFactory) stores {
	core, storage := factory.Core().V1(), factory.Storage().V1()
	return stores{
		nodes:                core.Nodes().Informer().GetIndexer(),
		pods:                 core.Pods().Informer().GetIndexer(),
		namespaces:           core.Namespaces().Informer().GetIndexer(),
		volumes:              core.PersistentVolumes().Informer().GetIndexer(),
		claims:               core.PersistentVolumeClaims().Informer().GetIndexer(),
		classes:              storage.StorageClasses().Informer().GetIndexer(),
		csiNodes:             storage.CSINodes().Informer().GetIndexer(),
		csiDrivers:           storage.CSIDrivers().Informer().GetIndexer(),
		csiStorageCapacities: storage.CSIStorageCapacities().Informer().GetIndexer(),
		volumeAttachments:    storage.VolumeAttachments().Informer().GetIndexer(),
	}
}

// load makes a cluster the one that the plugins see. The caller must call unload.
func (s *seat) load(c *cluster) error {
	pods := append(append([]*v1.Pod{}, c.Pods...), c.Pod)
	for _, fill := range []func() error{
		func() error { return replace(s.stores.nodes, c.Nodes) },
		func() error { return replace(s.stores.pods, pods) },
		func() error { return replace(s.stores.namespaces, c.Namespaces) },
		func() error { return replace(s.stores.volumes, c.PersistentVolumes) },
		func() error { return replace(s.stores.claims, c.PersistentVolumeClaims) },
		func() error { return replace(s.stores.classes, c.StorageClasses) },
		func() error { return replace(s.stores.csiNodes, c.CSINodes) },
		func() error { return replace(s.stores.csiDrivers, c.CSIDrivers) },
		func() error { return replace(s.stores.csiStorageCapacities, c.CSIStorageCapacities) },
		func() error { return replace(s.stores.volumeAttachments, c.VolumeAttachments) },
	} {
		if err := fill(); err != nil {
			return err
		}
	}
	logger := klog.FromContext(s.ctx)
	for _, node := range c.Nodes {
		s.scheduler.Cache.AddNode(logger, node)
	}
	for i, pod := range c.Pods {
		switch {
		case pod.Spec.NodeName != "":
			if err := s.scheduler.Cache.AddPod(logger, pod); err != nil {
				return fmt.Errorf("pods[%d]: %w", i, err)
			}
		case s.queues(pod):
			s.scheduler.SchedulingQueue.Add(s.ctx, pod)
		}
	}
	return s.scheduler.Cache.UpdateSnapshot(logger, s.snapshot)
}

// unload empties cache and queue; the stores are replaced as a whole by the next load.
func (s *seat) unload(c *cluster) error {
	logger := klog.FromContext(s.ctx)
	for _, pod := range c.Pods {
		switch {
		case pod.Spec.NodeName != "":
			if err := s.scheduler.Cache.RemovePod(logger, pod); err != nil {
				return err
			}
		case s.queues(pod):
			s.scheduler.SchedulingQueue.Delete(logger, pod)
		}
	}
	for _, node := range c.Nodes {
		if err := s.scheduler.Cache.RemoveNode(logger, node); err != nil {
			return err
		}
	}
	return s.scheduler.Cache.UpdateSnapshot(logger, s.snapshot)
}

// queues reports whether a pending pod would be in the scheduler's queue with a nomination: the queue is read for
// nothing else.
func (s *seat) queues(pod *v1.Pod) bool {
	return pod.Status.NominatedNodeName != "" && s.scheduler.Profiles.HandlesSchedulerName(pod.Spec.SchedulerName)
}

func replace[T any](store cache.Indexer, objects []T) error {
	items := make([]any, len(objects))
	for i, object := range objects {
		items[i] = object
	}
	return store.Replace(items, "")
}
