// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// kubeletCase is a sequence of steps on one node. `gates` hold for the whole case; only PodLevelResourceManagers
// and PodLevelResourcesFixKubeletQOSClass are permitted.
type kubeletCase struct {
	ID    string          `json:"id"`
	Gates map[string]bool `json:"gates"`
	Node  nodeSpec        `json:"node"`
	Steps []struct {
		Admit   *v1.Pod     `json:"admit"`
		Start   *startStep  `json:"start"`
		End     *string     `json:"end"`
		Offer   *devicePool `json:"offer"`
		Restart bool        `json:"restart"` // the kubelet finds all its pods again
	} `json:"steps"`
}

// startStep: the runtime starts one container of a pod.
type startStep struct {
	UID       string `json:"uid"`
	Container string `json:"container"`
}

// kubeletAnswer: `refuses` is why the kubelet would not start; then there are no steps. `failed` is why a step failed;
// the answer has the steps before it.
type kubeletAnswer struct {
	ID      string       `json:"id"`
	Refuses string       `json:"refuses,omitempty"`
	Failed  string       `json:"failed,omitempty"`
	Steps   []stepAnswer `json:"steps"`
}

// stepAnswer has the result of admission for each new pod, and then all that pods hold on the node.
type stepAnswer struct {
	Verdicts map[string]admission `json:"verdicts"`
	Shared   []int                `json:"shared"`
	Memory   map[int]memoryState  `json:"memory"`
	Pods     map[string]podState  `json:"pods"`
}

type admission struct {
	Admitted bool   `json:"admitted"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

type memoryState struct {
	Assignments int               `json:"assignments"`
	Cells       []int             `json:"cells"`
	Free        map[string]uint64 `json:"free"`
	Reserved    map[string]uint64 `json:"reserved"`
}

type podState struct {
	CPUs       []int                     `json:"cpus"`
	Memory     []state.Block             `json:"memory"`
	Containers map[string]containerState `json:"containers"`
}

type containerState struct {
	CPUs    []int               `json:"cpus"`
	Memory  []state.Block       `json:"memory"`
	Devices map[string][]string `json:"devices"`
}

func kubeletAdmit(w *worker, line []byte) (any, error) {
	var asked kubeletCase
	if err := json.Unmarshal(line, &asked); err != nil {
		return nil, err
	}
	leave, err := gates.enter(asked.Gates)
	if err != nil {
		return nil, fmt.Errorf("gates: %w", err)
	}
	defer leave()
	folder, err := newFolder()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	answer := kubeletAnswer{ID: asked.ID}
	n, err := newNode(w.ctx, asked.Node, folder, nil)
	if err != nil {
		answer.Refuses = err.Error()
		return answer, nil
	}
	for i, step := range asked.Steps {
		said := stepAnswer{Verdicts: map[string]admission{}}
		switch {
		case step.Admit != nil:
			said.Verdicts[string(step.Admit.UID)] = n.admit(w.ctx, step.Admit)
		case step.Start != nil:
			err = n.begin(w.ctx, *step.Start)
		case step.End != nil:
			n.remove(types.UID(*step.End))
		case step.Offer != nil:
			n.offer(klog.FromContext(w.ctx), *step.Offer)
			asked.Node.replace(*step.Offer)
		case step.Restart:
			before := n.pods()
			if n, err = newNode(w.ctx, asked.Node, folder, before); err == nil {
				for _, pod := range before {
					said.Verdicts[string(pod.UID)] = n.admit(w.ctx, pod)
				}
			}
		}
		if err != nil {
			answer.Failed = fmt.Sprintf("steps[%d]: %v", i, err)
			return answer, nil
		}
		n.settle(w.ctx)
		n.tell(w.ctx, &said)
		answer.Steps = append(answer.Steps, said)
	}
	return answer, nil
}

// admit asks the handlers in the order in which kubelet.go adds them. A pod that is refused has ended.
func (n *node) admit(ctx context.Context, pod *v1.Pod) admission {
	n.remove(pod.UID)
	others := n.pods()
	n.add(pod)
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others, Operation: lifecycle.AddOperation}
	result := n.topology.Admit(ctx, attributes)
	if result.Admit && n.predicate != nil {
		result = n.predicate.Admit(ctx, attributes)
	}
	if !result.Admit {
		n.remove(pod.UID)
	}
	return admission{result.Admit, result.Reason, result.Message}
}

// begin calls the managers as the kubelet does when it starts a container.
func (n *node) begin(ctx context.Context, step startStep) error {
	for _, pod := range n.pods() {
		if string(pod.UID) != step.UID {
			continue
		}
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			if container.Name != step.Container {
				continue
			}
			if _, err := n.devices.GetDeviceRunContainerOptions(ctx, pod, &container); err != nil {
				return err
			}
			logger, id := klog.FromContext(ctx), step.UID+"/"+step.Container
			n.cpus.AddContainer(logger, pod, &container, id)
			n.memory.AddContainer(logger, pod, &container, id)
			n.topology.AddContainer(logger, pod, &container, id)
			return nil
		}
	}
	return fmt.Errorf("no container %s in an active pod %s", step.Container, step.UID)
}

// settle lets the managers release what ended pods hold; they do so before their next allocation.
func (n *node) settle(ctx context.Context) {
	logger := klog.FromContext(ctx)
	nobody := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "nobody"}}}}
	n.devices.UpdateAllocatedDevices(logger)
	n.cpus.GetTopologyHints(logger, nobody, &nobody.Spec.Containers[0], lifecycle.AddOperation)
	n.memory.GetTopologyHints(logger, nobody, &nobody.Spec.Containers[0], lifecycle.AddOperation)
}

func (n *node) tell(ctx context.Context, said *stepAnswer) {
	logger := klog.FromContext(ctx)
	said.Shared = n.cpus.State().GetDefaultCPUSet().List()
	said.Memory = map[int]memoryState{}
	for id, numa := range n.memory.State().GetMachineState() {
		told := memoryState{numa.NumberOfAssignments, numa.Cells, map[string]uint64{}, map[string]uint64{}}
		for name, table := range numa.MemoryMap {
			told.Free[string(name)], told.Reserved[string(name)] = table.Free, table.Reserved
		}
		said.Memory[id] = told
	}
	said.Pods = map[string]podState{}
	for _, pod := range n.pods() {
		uid := string(pod.UID)
		told := podState{
			CPUs:       n.cpus.GetPodCPUs(uid).List(),
			Memory:     n.memory.GetPodMemory(uid),
			Containers: map[string]containerState{},
		}
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			held := containerState{
				CPUs:    n.cpus.GetExclusiveCPUs(uid, container.Name).List(),
				Memory:  n.memory.GetMemory(logger, uid, container.Name),
				Devices: map[string][]string{},
			}
			for resource, devices := range n.devices.GetDevices(uid, container.Name) {
				for id := range devices {
					held.Devices[resource] = append(held.Devices[resource], id)
				}
			}
			told.Containers[container.Name] = held
		}
		said.Pods[uid] = told
	}
}

// gates lets cases with the same feature gates run in parallel, as the gates are those of the process.
var gates = &turnstile{}

type turnstile struct {
	mutex  sync.Mutex
	left   *sync.Cond
	inside int
	now    string
}

func (t *turnstile) enter(wanted map[string]bool) (func(), error) {
	all := map[string]bool{
		"CPUManagerPolicyAlphaOptions":        true,
		"PodLevelResourceManagers":            false,
		"PodLevelResourcesFixKubeletQOSClass": true,
	}
	for name, on := range wanted {
		if _, known := all[name]; !known || name == "CPUManagerPolicyAlphaOptions" {
			return nil, fmt.Errorf("%s is not one of those that a case may set", name)
		}
		all[name] = on
	}
	key := fmt.Sprint(all)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.left == nil {
		t.left = sync.NewCond(&t.mutex)
	}
	for t.inside > 0 && t.now != key {
		t.left.Wait()
	}
	if t.now != key {
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(all); err != nil {
			return nil, err
		}
		t.now = key
	}
	t.inside++
	return func() {
		t.mutex.Lock()
		defer t.mutex.Unlock()
		t.inside--
		t.left.Broadcast()
	}, nil
}
