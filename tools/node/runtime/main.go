// SPDX-License-Identifier: Apache-2.0

// What containerd runs in place of runc: it takes out of the specification what would be refused here, and then becomes
// the runc on PATH.
//
// Three things are taken out, each only where it would be refused:
//   - a negative OOM score, without CAP_SYS_RESOURCE (the kubelet asks for one for sandboxes and Guaranteed pods);
//   - memory of NUMA nodes that the kernel does not have (the kubelet was shown more than there are);
//   - a seccomp profile, where runc was built without libseccomp (the kubelet asks for one for sandboxes).
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

type object = map[string]any

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
		os.Exit(1)
	}
}

func run(argv []string) error {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	if slices.Contains(argv, "create") {
		if at := slices.Index(argv, "--bundle"); at > 0 && at+1 < len(argv) {
			if err := rewrite(runc, filepath.Join(argv[at+1], "config.json")); err != nil {
				return err
			}
		}
	}
	if slices.Contains(argv, "update") && (slices.Contains(argv, "--resources=-") || slices.Contains(argv, "-")) {
		return update(runc, argv)
	}
	return syscall.Exec(runc, append([]string{runc}, argv[1:]...), os.Environ())
}

func rewrite(runc, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	spec, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	process := child(spec, "process")
	if score, ok := process["oomScoreAdj"].(json.Number); ok && !scoreAllowed(score.String()) {
		process["oomScoreAdj"] = 0
	}
	linux := child(spec, "linux")
	dropMems(child(linux, "resources"))
	version, err := exec.Command(runc, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", runc, err)
	}
	if !bytes.Contains(version, []byte("libseccomp")) {
		delete(linux, "seccomp")
	}
	text, err = json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// update runs runc with the resources that arrive on standard input, changed.
func update(runc string, argv []string) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	resources, err := parse(text)
	if err != nil {
		return err
	}
	dropMems(resources)
	text, err = json.Marshal(resources)
	if err != nil {
		return err
	}
	command := exec.Command(runc, argv[1:]...)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(text), os.Stdout, os.Stderr
	return command.Run()
}

func parse(text []byte) (object, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // sizes do not fit into a float
	var result object
	err := decoder.Decode(&result)
	return result, err
}

func child(parent object, name string) object {
	result, ok := parent[name].(object)
	if !ok {
		return object{}
	}
	return result
}

// scoreAllowed tries it on this process, which is about to become runc.
func scoreAllowed(score string) bool {
	const path = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	if os.WriteFile(path, []byte(score), 0) != nil {
		return false
	}
	os.WriteFile(path, before, 0)
	return true
}

func dropMems(resources object) {
	cpu := child(resources, "cpu")
	wanted, _ := cpu["mems"].(string)
	for node := range members(wanted) {
		if !existing()[node] {
			delete(cpu, "mems")
			return
		}
	}
}

// existing asks the root cgroup: /sys/devices/system/node may be a made-up one.
func existing() map[int]bool {
	for _, path := range []string{"/sys/fs/cgroup/cpuset/cpuset.mems", "/sys/fs/cgroup/cpuset.mems.effective"} {
		if text, err := os.ReadFile(path); err == nil {
			return members(strings.TrimSpace(string(text)))
		}
	}
	return nil
}

// members of a list such as 0-2,5.
func members(list string) map[int]bool {
	result := map[int]bool{}
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if err != nil || errTo != nil {
			continue
		}
		for number := from; number <= to; number++ {
			result[number] = true
		}
	}
	return result
}
