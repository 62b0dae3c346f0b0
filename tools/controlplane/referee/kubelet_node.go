// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	plugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// newDeviceManager is devicemanager.NewManagerImpl with a socket path of our own: the exported constructor would write to
// /var/lib/kubelet.
//
//go:linkname newDeviceManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newDeviceManager(klog.Logger, string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

// nodeSpec is a machine and the configuration of its kubelet.
type nodeSpec struct {
	NUMA []struct {
		ID        int               `json:"id"`
		Memory    uint64            `json:"memory"`
		Reserved  map[string]uint64 `json:"reserved"`
		HugePages map[string]uint64 `json:"hugePages"` // pages by their size in KiB
		Distances []uint64          `json:"distances"`
		Cores     []struct {
			Threads []int `json:"threads"`
			Socket  int   `json:"socket"`
			Uncore  *int  `json:"uncore"`
		} `json:"cores"`
	} `json:"numa"`
	TopologyPolicy  string            `json:"topologyPolicy"`
	TopologyScope   string            `json:"topologyScope"`
	TopologyOptions map[string]string `json:"topologyOptions"`
	CPUPolicy       string            `json:"cpuPolicy"`
	CPUOptions      map[string]string `json:"cpuOptions"`
	ReservedCPUs    []int             `json:"reservedCPUs"`
	MemoryPolicy    string            `json:"memoryPolicy"`
	Devices         []devicePool      `json:"devices"`
	Allocatable     v1.ResourceList   `json:"allocatable"` // null: no check that requests fit the node
}

// devicePool: `prefers` is the plugin's answer to GetPreferredAllocation: "" it has no such call, "lowest" or "highest"
// the first or last devices of the pool, "one" the last device alone.
type devicePool struct {
	Resource string `json:"resource"`
	Prefers  string `json:"prefers"`
	Devices  []struct {
		ID      string  `json:"id"`
		NUMA    []int64 `json:"numa"` // null: no topology at all
		Healthy bool    `json:"healthy"`
	} `json:"devices"`
}

// node is the part of a kubelet that admits pods by their resources, built as container_manager_linux.go builds it.
type node struct {
	mutex     sync.Mutex
	active    []*v1.Pod
	topology  topologymanager.Manager
	devices   *devicemanager.ManagerImpl
	cpus      cpumanager.Manager
	memory    memorymanager.Manager
	predicate lifecycle.PodAdmitHandler
}

// newNode starts a kubelet with the managers' state in `folder`, and with the pods `active`. The error is that with
// which the kubelet would exit.
func newNode(ctx context.Context, spec nodeSpec, folder string, active []*v1.Pod) (_ *node, err error) {
	n := &node{active: slices.Clone(active)}
	logger := klog.FromContext(ctx)
	machine, reservation, reserved := spec.machine()
	n.topology, err = topologymanager.NewManager(
		logger, machine.Topology, spec.TopologyPolicy, spec.TopologyScope, spec.TopologyOptions)
	if err != nil {
		return nil, fmt.Errorf("topology manager: %w", err)
	}
	socket := filepath.Join(folder, "device-plugins", "kubelet.sock")
	n.devices, err = newDeviceManager(logger, socket, machine.Topology, n.topology)
	if err != nil {
		return nil, fmt.Errorf("device manager: %w", err)
	}
	n.topology.AddHintProvider(logger, n.devices)
	n.cpus, err = cpumanager.NewManager(logger, spec.CPUPolicy, spec.CPUOptions, 1000*time.Hour, machine,
		cpuset.New(spec.ReservedCPUs...), reservation, folder, n.topology)
	if err != nil {
		return nil, fmt.Errorf("CPU manager: %w", err)
	}
	n.topology.AddHintProvider(logger, n.cpus)
	n.memory, err = memorymanager.NewManager(
		logger, spec.MemoryPolicy, machine, reservation, reserved, folder, n.topology)
	if err != nil {
		return nil, fmt.Errorf("memory manager: %w", err)
	}
	n.topology.AddHintProvider(logger, n.memory)
	if err = n.start(ctx, spec.CPUPolicy == string(cpumanager.PolicyStatic)); err != nil {
		return nil, err
	}
	for _, pool := range spec.Devices {
		if err = n.devices.PluginConnected(ctx, pool.Resource, fakePlugin{pool}); err != nil {
			return nil, fmt.Errorf("device manager: %w", err)
		}
		n.offer(logger, pool)
	}
	if spec.Allocatable == nil {
		return n, nil
	}
	self := &v1.Node{}
	self.Status.Allocatable = spec.Allocatable
	n.predicate = lifecycle.NewPredicateAdmitHandler(
		func(context.Context, bool) (*v1.Node, error) { return self, nil }, refuses{}, n.devices.UpdatePluginResources)
	return n, nil
}

func (n *node) start(ctx context.Context, static bool) error {
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	ready.AddSource("api")
	known := containermap.NewContainerMap
	pods, reconciled := n.counted(2)
	if err := n.cpus.Start(ctx, pods, ready, noStatus{}, nil, known()); err != nil {
		return fmt.Errorf("CPU manager: %w", err)
	}
	if static {
		// It reconciles once in the background, which may write its state, and after that not for 1000 hours.
		<-reconciled
	}
	if err := n.memory.Start(ctx, n.pods, ready, noStatus{}, nil, known()); err != nil {
		return fmt.Errorf("memory manager: %w", err)
	}
	logger := klog.FromContext(ctx)
	if err := n.devices.Start(logger, n.pods, ready, known(), sets.New[string]()); err != nil {
		return fmt.Errorf("device manager: %w", err)
	}
	// Plugins are connected by hand.
	return n.devices.Stop(logger)
}

func (n *node) pods() []*v1.Pod {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Clone(n.active)
}

// counted returns a source of pods, and a channel that is closed at its n-th call.
func (n *node) counted(times int32) (func() []*v1.Pod, <-chan struct{}) {
	var calls atomic.Int32
	done := make(chan struct{})
	return func() []*v1.Pod {
		if calls.Add(1) == times {
			close(done)
		}
		return n.pods()
	}, done
}

func (n *node) add(pod *v1.Pod) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.active = append(n.active, pod)
}

func (n *node) remove(uid types.UID) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.active = slices.DeleteFunc(n.active, func(pod *v1.Pod) bool { return pod.UID == uid })
}

func (n *node) offer(logger klog.Logger, pool devicePool) {
	response := &pluginapi.ListAndWatchResponse{}
	for _, device := range pool.Devices {
		offered := &pluginapi.Device{ID: device.ID, Health: pluginapi.Unhealthy}
		if device.Healthy {
			offered.Health = pluginapi.Healthy
		}
		if device.NUMA != nil {
			offered.Topology = &pluginapi.TopologyInfo{}
			for _, id := range device.NUMA {
				offered.Topology.Nodes = append(offered.Topology.Nodes, &pluginapi.NUMANode{ID: id})
			}
		}
		response.Devices = append(response.Devices, offered)
	}
	n.devices.PluginListAndWatchReceiver(logger, pool.Resource, response)
}

// replace sets the devices that a plugin offers now.
func (s *nodeSpec) replace(pool devicePool) {
	for i := range s.Devices {
		if s.Devices[i].Resource == pool.Resource {
			s.Devices[i] = pool
		}
	}
}

func (s nodeSpec) machine() (*cadvisorapi.MachineInfo, v1.ResourceList, []kubeletconfig.MemoryReservation) {
	machine := &cadvisorapi.MachineInfo{}
	sockets := sets.New[int]()
	totals := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(len(s.ReservedCPUs)), resource.DecimalSI)}
	var reserved []kubeletconfig.MemoryReservation
	for _, numa := range s.NUMA {
		made := cadvisorapi.Node{Id: numa.ID, Memory: numa.Memory, Distances: numa.Distances}
		for _, size := range slices.Sorted(maps.Keys(numa.HugePages)) {
			kib, _ := strconv.ParseUint(size, 10, 64)
			made.HugePages = append(made.HugePages, cadvisorapi.HugePagesInfo{PageSize: kib, NumPages: numa.HugePages[size]})
		}
		for i, core := range numa.Cores {
			thread := cadvisorapi.Core{Id: i, Threads: core.Threads, SocketID: core.Socket}
			if core.Uncore != nil {
				thread.UncoreCaches = []cadvisorapi.Cache{{Id: *core.Uncore, Level: 3}}
			}
			made.Cores = append(made.Cores, thread)
			machine.NumCores += len(core.Threads)
			machine.NumPhysicalCores++
			sockets.Insert(core.Socket)
		}
		machine.Topology = append(machine.Topology, made)
		limits := v1.ResourceList{}
		for name, bytes := range numa.Reserved {
			amount := *resource.NewQuantity(int64(bytes), resource.BinarySI)
			limits[v1.ResourceName(name)] = amount
			total := totals[v1.ResourceName(name)]
			total.Add(amount)
			totals[v1.ResourceName(name)] = total
		}
		if len(limits) > 0 {
			reserved = append(reserved, kubeletconfig.MemoryReservation{NumaNode: int32(numa.ID), Limits: limits})
		}
	}
	machine.NumSockets = sockets.Len()
	return machine, totals, reserved
}

// newFolder makes a folder for the managers' state files, which they write at every change: in memory if possible.
func newFolder() (string, error) {
	parent := os.TempDir()
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		parent = "/dev/shm"
	}
	return os.MkdirTemp(parent, "kubelet-")
}

type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }

// refuses evicts no pod for a critical one.
type refuses struct{}

func (refuses) HandleAdmissionFailure(
	_ context.Context, _ *v1.Pod, reasons []lifecycle.PredicateFailureReason, _ lifecycle.Operation,
) ([]lifecycle.PredicateFailureReason, error) {
	return reasons, nil
}

// fakePlugin answers as its pool defines, without a socket.
type fakePlugin struct{ pool devicePool }

var (
	_ plugin.DevicePlugin          = fakePlugin{}
	_ pluginapi.DevicePluginClient = fakePlugin{}
)

func (p fakePlugin) API() pluginapi.DevicePluginClient { return p }
func (p fakePlugin) Resource() string                  { return p.pool.Resource }
func (p fakePlugin) SocketPath() string                { return "/" + p.pool.Resource }

func (p fakePlugin) GetDevicePluginOptions(
	context.Context, *pluginapi.Empty, ...grpc.CallOption,
) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: p.pool.Prefers != ""}, nil
}

func (p fakePlugin) ListAndWatch(
	context.Context, *pluginapi.Empty, ...grpc.CallOption,
) (grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse], error) {
	return nil, fmt.Errorf("devices are offered by hand")
}

func (p fakePlugin) GetPreferredAllocation(
	_ context.Context, request *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption,
) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		answer := &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: p.preferred(container)}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}

func (p fakePlugin) preferred(request *pluginapi.ContainerPreferredAllocationRequest) []string {
	available := sets.New(request.AvailableDeviceIDs...)
	var order []string
	for _, device := range p.pool.Devices {
		if available.Has(device.ID) {
			order = append(order, device.ID)
		}
	}
	size := int(request.AllocationSize)
	if p.pool.Prefers != "lowest" {
		slices.Reverse(order)
	}
	if p.pool.Prefers == "one" {
		return order[:min(1, len(order))]
	}
	chosen := slices.Clone(request.MustIncludeDeviceIDs)
	for _, id := range order {
		if len(chosen) < size && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen
}

func (p fakePlugin) Allocate(
	_ context.Context, request *pluginapi.AllocateRequest, _ ...grpc.CallOption,
) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return response, nil
}

func (p fakePlugin) PreStartContainer(
	context.Context, *pluginapi.PreStartContainerRequest, ...grpc.CallOption,
) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}
