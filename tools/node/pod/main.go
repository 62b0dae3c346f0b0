// SPDX-License-Identifier: Apache-2.0

// What runs in the pods of the real node, and as their sandbox: the one program of the one image.
//
//	pod pause                    until SIGTERM
//	pod show [SECONDS [STATUS]]  print what this container was given, as a line of JSON; end after SECONDS with STATUS
//
// `show` without SECONDS waits for SIGTERM, which ends it with 0.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Given is what a container can find out about what it was given.
type Given struct {
	Env map[string]string `json:"env"`
	// Every device file under /dev, and "ok" or why it cannot be opened: the device cgroup says EPERM.
	Devices map[string]string `json:"devices"`
	Files   []string          `json:"files"` // everything else under /dev
	Cpus    string            `json:"cpus"`
	Mems    string            `json:"mems"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(2)
	}
}

func run(arguments []string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	if len(arguments) == 0 {
		return errors.New("say what to do: pause, or show [SECONDS [STATUS]]")
	}
	numbers := []int{}
	for _, word := range arguments[1:] {
		number, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	switch {
	case arguments[0] == "pause" && len(numbers) == 0:
		<-ended
	case arguments[0] == "show" && len(numbers) <= 2:
		line, err := json.Marshal(given())
		if err != nil {
			return err
		}
		fmt.Println(string(line))
		if len(numbers) == 0 {
			<-ended
			return nil
		}
		select {
		case <-ended:
		case <-time.After(time.Duration(numbers[0]) * time.Second):
			if len(numbers) == 2 {
				os.Exit(numbers[1])
			}
		}
	default:
		return fmt.Errorf("cannot do %q", arguments)
	}
	return nil
}

func given() Given {
	result := Given{Env: map[string]string{}, Devices: map[string]string{}, Files: []string{}}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		result.Env[name] = value
	}
	filepath.WalkDir("/dev", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil
		}
		if entry.Type()&fs.ModeDevice != 0 {
			result.Devices[path] = openable(path)
		} else {
			result.Files = append(result.Files, path)
		}
		return nil
	})
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Cpus_allowed_list":
			result.Cpus = strings.TrimSpace(value)
		case "Mems_allowed_list":
			result.Mems = strings.TrimSpace(value)
		}
	}
	return result
}

func openable(path string) string {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		var number syscall.Errno
		if errors.As(err, &number) {
			return number.Error()
		}
		return err.Error()
	}
	file.Close()
	return "ok"
}
