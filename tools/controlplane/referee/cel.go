// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"sync"

	celgo "github.com/google/cel-go/cel"
	resourceapi "k8s.io/api/resource/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// celCase asks every expression about every device, as a selector of a claim or class for kube-scheduler.
type celCase struct {
	header
	Expressions []string `json:"expressions"`
	Devices     []struct {
		Driver string          `json:"driver"`
		Device json.RawMessage `json:"device"` // a device of a ResourceSlice
	} `json:"devices"`
}

// celAnswer: `results` are in the order of the case's expressions.
type celAnswer struct {
	ID      string      `json:"id"`
	Results []celResult `json:"results"`
}

// celResult: either the expression does not compile, or `devices` are in the order of the case's devices.
type celResult struct {
	CompileError string     `json:"compileError,omitempty"`
	Devices      []celMatch `json:"devices,omitempty"`
}

// celMatch: `cost` is in CEL's cost units, absent if the evaluation did not begin, or if its limit ended it.
type celMatch struct {
	Match        *bool   `json:"match,omitempty"`
	RuntimeError string  `json:"runtimeError,omitempty"`
	Cost         *uint64 `json:"cost,omitempty"`
}

// schedulerFeatures are those that the feature gates enable in the allocator of kube-scheduler.
var schedulerFeatures = sync.OnceValue(func() structured.Features {
	return dynamicresources.AllocatorFeatures(feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
})

// schedulerSelectors compiles selectors as kube-scheduler does.
var schedulerSelectors = sync.OnceValue(func() *dracel.Cache { return newSelectors(schedulerFeatures()) })

func newSelectors(features structured.Features) *dracel.Cache {
	return dracel.NewCache(1000, dracel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity,
		EnableListTypeAttributes: features.ListTypeAttributes,
	})
}

// celMatches answers the question "cel".
func celMatches(w *worker, line []byte) (any, error) {
	var c celCase
	if err := readOne("case", line, &c); err != nil {
		return nil, err
	}
	devices := make([]dracel.Device, len(c.Devices))
	for i, one := range c.Devices {
		var device resourceapi.Device
		if err := readOne(fmt.Sprintf("devices[%d].device", i), one.Device, &device); err != nil {
			return nil, err
		}
		devices[i] = dracel.Device{
			Driver:                   one.Driver,
			AllowMultipleAllocations: device.AllowMultipleAllocations,
			Attributes:               device.Attributes,
			Capacity:                 device.Capacity,
		}
	}
	answer := &celAnswer{ID: c.ID, Results: make([]celResult, len(c.Expressions))}
	for i, expression := range c.Expressions {
		compiled := schedulerSelectors().GetOrCompile(expression)
		if compiled.Error != nil {
			answer.Results[i].CompileError = compiled.Error.Error()
			continue
		}
		for _, device := range devices {
			matches, details, err := compiled.DeviceMatches(w.ctx, device)
			answer.Results[i].Devices = append(answer.Results[i].Devices, celMatchOf(matches, details, err))
		}
	}
	return answer, nil
}

func celMatchOf(matches bool, details *celgo.EvalDetails, err error) celMatch {
	found := celMatch{}
	if err != nil {
		found.RuntimeError = err.Error()
	} else {
		found.Match = &matches
	}
	if details != nil {
		found.Cost = details.ActualCost()
	}
	return found
}
