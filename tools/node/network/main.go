// SPDX-License-Identifier: Apache-2.0

// The network of the pods of a real node, as a CNI plugin that changes nothing on the machine.
//
// A pod has a network namespace of its own without any link. Its address is one of the machine's loopback range, chosen at
// random. A process for each pod, which ends with it, carries connections:
//   - from the machine to a port of the pod's address, if something in the pod listens on that port on all addresses:
//     the kubelet's probes, and scrapes;
//   - from the pod to the service `kubernetes` and to the node's kubelet, so that clients in pods reach both as in any
//     cluster.
//
// Pods do not reach each other, nor anything else.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// A pod's programs begin to listen soon after its start, or after something new in it listens. A look takes some tenths
// of a millisecond of CPU time, most of it to wake up, so looks become rarer.
const (
	firstLook  = 100 * time.Millisecond
	rarestLook = time.Second
)

// sock_diag(7): the protocol of netlink, its request, and the state in which a socket listens.
const (
	netlinkSockDiag  = 4
	sockDiagByFamily = 20
	stateListen      = 10
)

// What the network's configuration has beside CNI's own fields.
type configuration struct {
	CNIVersion string `json:"cniVersion"`
	// By address and port in the pod, where its connections end on the machine.
	Reached map[string]string `json:"reached"`
	State   string            `json:"state"`
}

func main() {
	var err error
	if len(os.Args) > 1 {
		err = relay(os.Args[1], os.Args[2], os.Args[3])
	} else {
		err = plugin(os.Getenv("CNI_COMMAND"))
	}
	if err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": err.Error()})
		os.Exit(1)
	}
}

func plugin(command string) error {
	if command == "VERSION" {
		fmt.Println(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`)
		return nil
	}
	var config configuration
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		return err
	}
	note := filepath.Join(config.State, os.Getenv("CNI_CONTAINERID"))
	switch command {
	case "ADD":
		return add(config, note, os.Getenv("CNI_NETNS"))
	case "DEL":
		return remove(note)
	}
	return nil
}

func add(config configuration, note, netns string) error {
	address := fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(128), rand.IntN(256), 1+rand.IntN(254))
	self, err := os.Executable()
	if err != nil {
		return err
	}
	reached, err := json.Marshal(config.Reached)
	if err != nil {
		return err
	}
	child := exec.Command(self, netns, address, string(reached))
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	output, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	if line, _ := bufio.NewReader(output).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("the relay of %s: %s", netns, strings.TrimSpace(line))
	}
	if err := os.MkdirAll(config.State, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(note, []byte(strconv.Itoa(child.Process.Pid)), 0o644); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"cniVersion": config.CNIVersion,
		"interfaces": []any{map[string]any{"name": "eth0", "sandbox": netns}},
		"ips":        []any{map[string]any{"address": address + "/8", "interface": 0}},
		"dns":        map[string]any{},
	})
}

func remove(note string) error {
	text, err := os.ReadFile(note)
	if err != nil {
		// CNI: what is gone already is no error.
		return nil
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return os.Remove(note)
}

// Carries connections of one pod until it is killed.
func relay(netns, address, reached string) error {
	var targets map[string]string
	if err := json.Unmarshal([]byte(reached), &targets); err != nil {
		return err
	}
	ready := make(chan error)
	dials := make(chan func())
	opened := make(chan int)
	go inside(netns, targets, ready, dials, opened)
	if err := <-ready; err != nil {
		return err
	}
	fmt.Println("ready")
	os.Stdout.Close()
	for port := range opened {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		go carry(listener, func() (net.Conn, error) { return dialFrom(dials, port) })
	}
	return nil
}

// Runs on a thread in the pod's namespace: sockets that it makes are the pod's.
func inside(netns string, targets map[string]string, ready chan<- error, dials <-chan func(), opened chan<- int) {
	runtime.LockOSThread()
	listeners, err := enter(netns, slices.Sorted(maps.Keys(targets)))
	if err != nil {
		ready <- err
		return
	}
	diagnosis, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, netlinkSockDiag)
	if err == nil {
		_, err = listening(diagnosis)
	}
	ready <- err
	if err != nil {
		return
	}
	for address, listener := range listeners {
		go carry(listener, func() (net.Conn, error) { return net.Dial("tcp", targets[address]) })
	}
	known := map[int]bool{}
	wait := firstLook
	look := time.NewTimer(wait)
	for {
		select {
		case dial := <-dials:
			dial()
		case <-look.C:
			wait = min(wait+wait/8, rarestLook)
			// The first look succeeded; one that fails is made again.
			ports, _ := listening(diagnosis)
			for _, port := range ports {
				if !known[port] {
					known[port] = true
					wait = firstLook
					go func() { opened <- port }()
				}
			}
			look.Reset(wait)
		}
	}
}

func enter(netns string, addresses []string) (map[string]net.Listener, error) {
	file, err := os.Open(netns)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, _, number := syscall.RawSyscall(sysSetns, file.Fd(), syscall.CLONE_NEWNET, 0); number != 0 {
		return nil, fmt.Errorf("setns: %w", number)
	}
	listeners := map[string]net.Listener{}
	for number, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if err := addToLoopback(fmt.Sprintf("lo:%d", number+1), net.ParseIP(host).To4()); err != nil {
			return nil, fmt.Errorf("the address %s on lo: %w", host, err)
		}
		if listeners[address], err = net.Listen("tcp", address); err != nil {
			return nil, err
		}
	}
	return listeners, nil
}

// struct ifreq of netdevice(7): a name, then an address or flags.
type request struct {
	name  [16]byte
	value [24]byte
}

func addToLoopback(name string, ip net.IP) error {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(socket)
	flags := request{}
	copy(flags.name[:], "lo")
	*(*uint16)(unsafe.Pointer(&flags.value[0])) = syscall.IFF_UP | syscall.IFF_RUNNING | syscall.IFF_LOOPBACK
	alias := request{}
	copy(alias.name[:], name)
	*(*uint16)(unsafe.Pointer(&alias.value[0])) = syscall.AF_INET
	copy(alias.value[4:8], ip)
	mask := alias
	copy(mask.value[4:8], []byte{255, 255, 255, 255})
	for _, step := range []struct {
		command uintptr
		request *request
	}{{syscall.SIOCSIFFLAGS, &flags}, {syscall.SIOCSIFADDR, &alias}, {syscall.SIOCSIFNETMASK, &mask}} {
		_, _, number := syscall.Syscall(syscall.SYS_IOCTL, uintptr(socket), step.command, uintptr(unsafe.Pointer(step.request)))
		if number != 0 {
			return number
		}
	}
	return nil
}

// struct inet_diag_sockid: of it, addresses are in network order, an IPv4 address in the first 4 bytes.
type socketID struct {
	SourcePort, DestinationPort [2]byte
	Source, Destination         [16]byte
	Interface                   uint32
	Cookie                      [2]uint32
}

// A message of netlink with a struct inet_diag_req_v2.
type diagRequest struct {
	Header                                syscall.NlMsghdr
	Family, Protocol, Extensions, Padding uint8
	States                                uint32
	ID                                    socketID
}

// struct inet_diag_msg, as far as it is read.
type diagAnswer struct {
	Family, State, Timer, Retransmissions uint8
	ID                                    socketID
}

// The ports on which something listens on all addresses, in the namespace in which this socket was made. (/proc/net/tcp
// has them too, but its reader walks over the connections of the whole machine: five milliseconds.)
func listening(diagnosis int) ([]int, error) {
	var ports []int
	for _, family := range []uint8{syscall.AF_INET, syscall.AF_INET6} {
		request := diagRequest{Family: family, Protocol: syscall.IPPROTO_TCP, States: 1 << stateListen}
		request.Header = syscall.NlMsghdr{
			Len:   uint32(unsafe.Sizeof(request)),
			Type:  sockDiagByFamily,
			Flags: syscall.NLM_F_REQUEST | syscall.NLM_F_DUMP,
		}
		content := unsafe.Slice((*byte)(unsafe.Pointer(&request)), unsafe.Sizeof(request))
		if err := syscall.Sendto(diagnosis, content, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
		found, err := answered(diagnosis)
		if err != nil {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
		ports = append(ports, found...)
	}
	return ports, nil
}

func answered(diagnosis int) ([]int, error) {
	var ports []int
	buffer := make([]byte, 1<<13)
	for {
		count, _, err := syscall.Recvfrom(diagnosis, buffer, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:count])
		if err != nil {
			return nil, err
		}
		for _, message := range messages {
			switch {
			case message.Header.Type == syscall.NLMSG_DONE || message.Header.Type == syscall.NLMSG_ERROR:
				// Where no module of the kernel knows TCP, the end of the list has the error, too.
				if len(message.Data) >= 4 {
					if status := *(*int32)(unsafe.Pointer(&message.Data[0])); status < 0 {
						return nil, syscall.Errno(-status)
					}
				}
				return ports, nil
			case len(message.Data) >= int(unsafe.Sizeof(diagAnswer{})):
				answer := (*diagAnswer)(unsafe.Pointer(&message.Data[0]))
				if answer.ID.Source == [16]byte{} {
					ports = append(ports, int(binary.BigEndian.Uint16(answer.ID.SourcePort[:])))
				}
			}
		}
	}
}

// Connects to a port of the pod, on the thread in its namespace.
func dialFrom(dials chan<- func(), port int) (net.Conn, error) {
	type answer struct {
		connection net.Conn
		err        error
	}
	answers := make(chan answer, 1)
	dials <- func() {
		connection, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		answers <- answer{connection, err}
	}
	result := <-answers
	return result.connection, result.err
}

func carry(listener net.Listener, dial func() (net.Conn, error)) {
	for {
		accepted, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer accepted.Close()
			other, err := dial()
			if err != nil {
				return
			}
			defer other.Close()
			ended := make(chan struct{}, 2)
			for _, pair := range [][2]net.Conn{{accepted, other}, {other, accepted}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].(*net.TCPConn).CloseWrite()
					ended <- struct{}{}
				}()
			}
			<-ended
			<-ended
		}()
	}
}
