// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// cluster is the cluster of a case: its objects as the API server returns them, and the pod to place.
type cluster struct {
	ID                     string
	Nodes                  []*v1.Node
	Pods                   []*v1.Pod
	Namespaces             []*v1.Namespace
	PersistentVolumes      []*v1.PersistentVolume
	PersistentVolumeClaims []*v1.PersistentVolumeClaim
	StorageClasses         []*storagev1.StorageClass
	CSINodes               []*storagev1.CSINode
	VolumeAttachments      []*storagev1.VolumeAttachment
	CSIDrivers             []*storagev1.CSIDriver
	CSIStorageCapacities   []*storagev1.CSIStorageCapacity
	Pod                    *v1.Pod
}

type rawCluster struct {
	header
	Nodes                  []json.RawMessage `json:"nodes"`
	Pods                   []json.RawMessage `json:"pods"`
	Namespaces             []json.RawMessage `json:"namespaces"`
	PersistentVolumes      []json.RawMessage `json:"persistentVolumes"`
	PersistentVolumeClaims []json.RawMessage `json:"persistentVolumeClaims"`
	StorageClasses         []json.RawMessage `json:"storageClasses"`
	CSINodes               []json.RawMessage `json:"csiNodes"`
	VolumeAttachments      []json.RawMessage `json:"volumeAttachments"`
	CSIDrivers             []json.RawMessage `json:"csiDrivers"`
	CSIStorageCapacities   []json.RawMessage `json:"csiStorageCapacities"`
	Pod                    json.RawMessage   `json:"pod"`
}

// readCluster is strict: a field that the type does not have is an error, so that no part of a case is ignored.
func readCluster(line []byte) (*cluster, error) {
	var raw rawCluster
	if strict, err := kjson.UnmarshalStrict(line, &raw); err != nil {
		return nil, err
	} else if len(strict) > 0 {
		return nil, strict[0]
	}
	if raw.Pod == nil {
		return nil, fmt.Errorf("pod: the pod to place is missing")
	}
	c := &cluster{ID: raw.ID, Pod: &v1.Pod{}}
	if err := readOne("pod", raw.Pod, c.Pod); err != nil {
		return nil, err
	}
	for _, err := range []error{
		readAll("nodes", raw.Nodes, &c.Nodes),
		readAll("pods", raw.Pods, &c.Pods),
		readAll("namespaces", raw.Namespaces, &c.Namespaces),
		readAll("persistentVolumes", raw.PersistentVolumes, &c.PersistentVolumes),
		readAll("persistentVolumeClaims", raw.PersistentVolumeClaims, &c.PersistentVolumeClaims),
		readAll("storageClasses", raw.StorageClasses, &c.StorageClasses),
		readAll("csiNodes", raw.CSINodes, &c.CSINodes),
		readAll("volumeAttachments", raw.VolumeAttachments, &c.VolumeAttachments),
		readAll("csiDrivers", raw.CSIDrivers, &c.CSIDrivers),
		readAll("csiStorageCapacities", raw.CSIStorageCapacities, &c.CSIStorageCapacities),
	} {
		if err != nil {
			return nil, err
		}
	}
	for i, pod := range c.Pods {
		if pod.UID == c.Pod.UID || (pod.Namespace == c.Pod.Namespace && pod.Name == c.Pod.Name) {
			return nil, fmt.Errorf("pods[%d]: is the pod to place", i)
		}
	}
	return c, nil
}

// readAll also rejects an object without a name, and a second one of the same name, as one would hide the other.
func readAll[T any, P interface {
	*T
	metav1.Object
}](field string, raw []json.RawMessage, into *[]P) error {
	seen := map[string]int{}
	for i, one := range raw {
		object, at := P(new(T)), fmt.Sprintf("%s[%d]", field, i)
		if err := readOne(at, one, object); err != nil {
			return err
		}
		key := object.GetNamespace() + "/" + object.GetName()
		if object.GetName() == "" {
			return fmt.Errorf("%s.metadata.name: missing", at)
		}
		if other, twice := seen[key]; twice {
			return fmt.Errorf("%s.metadata.name: %q is also %s[%d]", at, key, field, other)
		}
		seen[key] = i
		*into = append(*into, object)
	}
	return nil
}

func readOne(at string, raw json.RawMessage, into any) error {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err == nil && len(strict) == 0 {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s: %w", at, strict[0])
	}
	return fmt.Errorf("%s%s: %w", at, culprit(raw, func(changed []byte) bool {
		_, err := kjson.UnmarshalStrict(changed, into)
		return err == nil
	}), err)
}

// culprit finds the path of the value that cannot be read: decoders of single values (quantities, times) do not know
// their path. It is "" if removing no single value makes the object readable.
func culprit(raw []byte, reads func([]byte) bool) string {
	var root any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if decoder.Decode(&root) != nil {
		return ""
	}
	path := ""
	for current := root; ; {
		next, step := any(nil), ""
		try := func(value any, name string, without, restore func()) {
			without()
			if changed, err := json.Marshal(root); step == "" && err == nil && reads(changed) {
				next, step = value, name
			}
			restore()
		}
		switch parent := current.(type) {
		case map[string]any:
			for key, value := range parent {
				try(value, "."+key, func() { delete(parent, key) }, func() { parent[key] = value })
			}
		case []any:
			for i, value := range parent {
				try(value, fmt.Sprintf("[%d]", i), func() { parent[i] = nil }, func() { parent[i] = value })
			}
		}
		if step == "" {
			return path
		}
		path, current = path+step, next
	}
}
