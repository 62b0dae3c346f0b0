// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math/bits"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
)

// mergeCase asks the Topology Manager's policies of one machine about many sets of hints.
type mergeCase struct {
	ID            string     `json:"id"`
	NUMA          []int      `json:"numa"`
	Distances     [][]uint64 `json:"distances"`
	PreferClosest bool       `json:"preferClosest"`
	Merges        []merge    `json:"merges"`
}

// merge: by manager and resource a list of [mask or null, preferred], or null.
type merge struct {
	Policy string              `json:"policy"`
	Hints  []map[string][]hint `json:"hints"`
}

type hint struct {
	mask      *uint64
	preferred bool
}

func (h *hint) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.mask, &h.preferred})
}

type merged struct {
	Mask      *uint64 `json:"mask"`
	Preferred bool    `json:"preferred"`
	Admit     bool    `json:"admit"`
}

type mergeAnswer struct {
	ID     string   `json:"id"`
	Merges []merged `json:"merges"`
}

func topologyMerge(_ *worker, line []byte) (any, error) {
	var asked mergeCase
	if err := json.Unmarshal(line, &asked); err != nil {
		return nil, err
	}
	options := topologymanager.PolicyOptions{PreferClosestNUMA: asked.PreferClosest}
	var machine []cadvisorapi.Node
	for i, id := range asked.NUMA {
		node := cadvisorapi.Node{Id: id}
		if asked.Distances != nil {
			node.Distances = asked.Distances[i]
		}
		machine = append(machine, node)
	}
	info, err := topologymanager.NewNUMAInfo(machine, options)
	if err != nil {
		return nil, fmt.Errorf("distances: %w", err)
	}
	policies := map[string]topologymanager.Policy{}
	for _, policy := range []topologymanager.Policy{
		topologymanager.NewBestEffortPolicy(info, options),
		topologymanager.NewRestrictedPolicy(info, options),
		topologymanager.NewSingleNumaNodePolicy(info, options),
	} {
		policies[policy.Name()] = policy
	}
	answer := mergeAnswer{ID: asked.ID}
	for i, one := range asked.Merges {
		policy, known := policies[one.Policy]
		if !known {
			return nil, fmt.Errorf("merges[%d].policy: %q is not known", i, one.Policy)
		}
		best, admit := policy.Merge(klog.Logger{}, hintsOf(one.Hints))
		answer.Merges = append(answer.Merges, merged{maskOf(best.NUMANodeAffinity), best.Preferred, admit})
	}
	return answer, nil
}

func hintsOf(providers []map[string][]hint) []map[string][]topologymanager.TopologyHint {
	var all []map[string][]topologymanager.TopologyHint
	for _, resources := range providers {
		hints := map[string][]topologymanager.TopologyHint{}
		for resource, list := range resources {
			hints[resource] = nil
			if list != nil {
				hints[resource] = []topologymanager.TopologyHint{}
			}
			for _, one := range list {
				made := topologymanager.TopologyHint{Preferred: one.preferred}
				if one.mask != nil {
					made.NUMANodeAffinity, _ = bitmask.NewBitMask(bitsOf(*one.mask)...)
				}
				hints[resource] = append(hints[resource], made)
			}
		}
		all = append(all, hints)
	}
	return all
}

func bitsOf(mask uint64) []int {
	var set []int
	for ; mask != 0; mask &= mask - 1 {
		set = append(set, bits.TrailingZeros64(mask))
	}
	return set
}

func maskOf(mask bitmask.BitMask) *uint64 {
	if mask == nil {
		return nil
	}
	var value uint64
	for _, bit := range mask.GetBits() {
		value |= 1 << bit
	}
	return &value
}
