// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// verdict is a plugin's refusal of a pod: on all nodes (PreEnqueue, PreFilter) or on one (Filter).
type verdict struct {
	Plugin  string   `json:"plugin"`
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
}

// nodeAnswer: `accepted` is the scheduler's own answer, nominated pods included. `refusals` are those of all plugins,
// each asked alone. `nominated` is set if only nominated pods prevent the placement.
type nodeAnswer struct {
	Accepted  bool      `json:"accepted"`
	Refusals  []verdict `json:"refusals"`
	Nominated *verdict  `json:"nominated,omitempty"`
}

// filterAnswer: `skipped` are the plugins whose PreFilter returned Skip for this pod.
type filterAnswer struct {
	ID         string                `json:"id"`
	PreEnqueue []verdict             `json:"preEnqueue"`
	PreFilter  []verdict             `json:"preFilter"`
	Skipped    []string              `json:"skipped"`
	Nodes      map[string]nodeAnswer `json:"nodes"`
}

// filter answers the question "filter": which nodes are feasible, and which plugins refuse the others?
func filter(w *worker, line []byte) (any, error) {
	c, err := readCluster(line)
	if err != nil {
		return nil, err
	}
	s, err := w.seat()
	if err != nil {
		return nil, err
	}
	answer, err := s.filterIn(c)
	if err != nil {
		w.drop()
		return nil, err
	}
	return answer, nil
}

func (s *seat) filterIn(c *cluster) (*filterAnswer, error) {
	if err := s.load(c); err != nil {
		return nil, err
	}
	answer, err := s.filter(c.Pod)
	if err != nil {
		return nil, err
	}
	answer.ID = c.ID
	return answer, s.unload(c)
}

func (s *seat) filter(pod *v1.Pod) (*filterAnswer, error) {
	answer := &filterAnswer{
		PreEnqueue: []verdict{}, PreFilter: []verdict{}, Skipped: []string{}, Nodes: map[string]nodeAnswer{},
	}
	for _, plugin := range s.profile.PreEnqueuePlugins() {
		answer.PreEnqueue = against(answer.PreEnqueue, plugin, plugin.PreEnqueue(s.ctx, pod))
	}
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}

	official := framework.NewCycleState()
	chosen, allowed, _ := s.profile.RunPreFilterPlugins(s.ctx, official, pod)
	// Again for each plugin: the scheduler stops at the first refusal, and the comparison needs all of them.
	single := framework.NewCycleState()
	ready := s.preFilter(single, pod, nodes, answer)
	for _, node := range nodes {
		name := node.Node().Name
		found := nodeAnswer{Refusals: s.refusals(single, pod, node, ready)}
		if allowed.IsSuccess() && (chosen.AllNodes() || chosen.NodeNames.Has(name)) {
			found.Accepted, found.Nominated = s.ask(s.ctx, official, pod, node)
		}
		answer.Nodes[name] = found
	}
	return answer, nil
}

// preFilter runs PreFilter of each plugin alone. It returns the node names to which each plugin restricts the pod.
func (s *seat) preFilter(
	state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, answer *filterAnswer,
) map[string]*fwk.PreFilterResult {
	ready := map[string]*fwk.PreFilterResult{}
	for _, plugin := range s.plugins {
		first, is := plugin.(fwk.PreFilterPlugin)
		if !is {
			ready[plugin.Name()] = nil
			continue
		}
		result, status := first.PreFilter(s.ctx, state, pod, nodes)
		switch {
		case status.IsSkip():
			answer.Skipped = append(answer.Skipped, plugin.Name())
		case status.IsSuccess():
			ready[plugin.Name()] = result
		default:
			answer.PreFilter = against(answer.PreFilter, plugin, status)
		}
	}
	return ready
}

func (s *seat) refusals(
	state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, ready map[string]*fwk.PreFilterResult,
) []verdict {
	found := []verdict{}
	for _, plugin := range s.plugins {
		result, asked := ready[plugin.Name()]
		if !asked {
			continue
		}
		var status *fwk.Status
		if second, is := plugin.(fwk.FilterPlugin); is {
			status = second.Filter(s.ctx, state, pod, node)
		}
		if status.IsSuccess() && !result.AllNodes() && !result.NodeNames.Has(node.Node().Name) {
			status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "not among the nodes of PreFilter")
		}
		found = against(found, plugin, status)
	}
	return found
}

// ask runs the filters on a node as the scheduler does; the verdict is that of the plugin that refuses it because of
// nominated pods alone.
func (s *seat) ask(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (bool, *verdict) {
	status := s.profile.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
	if status.IsSuccess() {
		return true, nil
	}
	if alone := s.profile.RunFilterPlugins(ctx, state, pod, node); !alone.IsSuccess() {
		return false, nil
	}
	return false, &verdict{status.Plugin(), status.Code().String(), status.Reasons()}
}

func against(found []verdict, plugin fwk.Plugin, status *fwk.Status) []verdict {
	if status.IsSuccess() {
		return found
	}
	reasons := status.Reasons()
	if reasons == nil {
		reasons = []string{fmt.Sprintf("status %s without a reason", status.Code())}
	}
	return append(found, verdict{plugin.Name(), status.Code().String(), reasons})
}
