// SPDX-License-Identifier: Apache-2.0

// Command referee answers questions about a cluster with Kubernetes' own packages, so that other code can be compared
// with them. It reads one JSON object per line (a case: id, question, and what the question needs) and writes one JSON
// object per line (the answer, with the case's id). Cases are answered in parallel, so answers come in any order.
// A case that cannot be read or answered gets an answer whose `error` names the field; it never ends the program.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"

	"k8s.io/klog/v2"
)

// A question reads its case from a line, and answers it with the worker's own copy of what is expensive to create.
type question func(*worker, []byte) (any, error)

var questions = map[string]question{
	"filter": filter,
	"admit":  admit,

	"cel":          celMatches,
	"allocate":     allocate,
	"admit-claims": admitClaims,

	"topology-merge": topologyMerge,
	"kubelet-admit":  kubeletAdmit,
}

type header struct {
	ID       string `json:"id"`
	Question string `json:"question"`
}

type refusal struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// worker answers one case at a time. What it keeps between cases is created when a question first needs it.
type worker struct {
	ctx       context.Context
	scheduler *seat
}

// seat is created again after `drop`.
func (w *worker) seat() (*seat, error) {
	if w.scheduler != nil {
		return w.scheduler, nil
	}
	made, err := newSeat(w.ctx)
	w.scheduler = made
	return made, err
}

// drop discards a scheduler that still holds objects of a case, as the next case would see them.
func (w *worker) drop() {
	if w.scheduler != nil {
		w.scheduler.close()
		w.scheduler = nil
	}
}

func main() {
	workers := flag.Int("workers", runtime.NumCPU(), "cases answered at the same time")
	flag.Parse()
	// The answers have all that is needed; the packages' own log would repeat it.
	ctx := klog.NewContext(context.Background(), klog.Logger{})
	klog.SetLogger(klog.Logger{})
	if err := openGates(); err != nil {
		fmt.Fprintln(os.Stderr, "referee:", err)
		os.Exit(1)
	}
	if err := serve(ctx, os.Stdin, os.Stdout, *workers); err != nil {
		fmt.Fprintln(os.Stderr, "referee:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, in io.Reader, out io.Writer, workers int) error {
	lines := make(chan []byte, workers)
	answers := make(chan []byte, workers)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			w := &worker{ctx: ctx}
			for line := range lines {
				answers <- w.answer(line)
			}
		})
	}
	readErr := make(chan error, 1)
	go func() {
		readErr <- read(in, lines)
		close(lines)
		running.Wait()
		close(answers)
	}()
	for answer := range answers {
		if _, err := out.Write(append(answer, '\n')); err != nil {
			return fmt.Errorf("writing answers: %w", err)
		}
	}
	return <-readErr
}

func read(in io.Reader, lines chan<- []byte) error {
	reader := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 1 || (len(line) == 1 && line[0] != '\n') {
			lines <- line
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading cases: %w", err)
		}
	}
}

// answer never fails: each error, also a panic of the packages, becomes the answer.
func (w *worker) answer(line []byte) (encoded []byte) {
	var head header
	defer func() {
		if cause := recover(); cause != nil {
			w.drop()
			encoded = encode(refusal{head.ID, fmt.Sprintf("panic: %v", cause)})
		}
	}()
	if err := json.Unmarshal(line, &head); err != nil {
		return encode(refusal{head.ID, fmt.Sprintf("the line is no case: %v", err)})
	}
	ask, known := questions[head.Question]
	if !known {
		return encode(refusal{head.ID, fmt.Sprintf("question: %q is not known", head.Question)})
	}
	found, err := ask(w, line)
	if err != nil {
		return encode(refusal{head.ID, err.Error()})
	}
	return encode(found)
}

func encode(answer any) []byte {
	encoded, err := json.Marshal(answer)
	if err != nil {
		return []byte(fmt.Sprintf(`{"error": %q}`, err.Error()))
	}
	return encoded
}
