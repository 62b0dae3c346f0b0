// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/storage"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	storagevalidation "k8s.io/kubernetes/pkg/apis/storage/validation"
)

// admitAnswer: `problems` are objects that the API server would not have stored as they are: they break a rule, or lack
// a default. Of a status only what the decoder demands is checked.
type admitAnswer struct {
	ID       string   `json:"id"`
	Problems []string `json:"problems"`
}

// admit answers the question "admit": could an API server have stored the case's objects?
func admit(_ *worker, line []byte) (any, error) {
	c, err := readCluster(line)
	if err != nil {
		return nil, err
	}
	answer := &admitAnswer{ID: c.ID, Problems: []string{}}
	check := func(at string, object runtime.Object) {
		if problem := unfit(object); problem != "" {
			answer.Problems = append(answer.Problems, at+": "+problem)
		}
	}
	checkAll(check, "nodes", c.Nodes)
	checkAll(check, "pods", c.Pods)
	checkAll(check, "namespaces", c.Namespaces)
	checkAll(check, "persistentVolumes", c.PersistentVolumes)
	checkAll(check, "persistentVolumeClaims", c.PersistentVolumeClaims)
	checkAll(check, "storageClasses", c.StorageClasses)
	checkAll(check, "csiNodes", c.CSINodes)
	checkAll(check, "pod", []*v1.Pod{c.Pod})
	return answer, nil
}

func checkAll[P runtime.Object](check func(string, runtime.Object), at string, objects []P) {
	for i, object := range objects {
		check(fmt.Sprintf("%s[%d]", at, i), object)
	}
}

func unfit(object runtime.Object) string {
	defaulted := object.DeepCopyObject()
	legacyscheme.Scheme.Default(defaulted)
	if changed := diff.Diff(object, defaulted); changed != "" {
		return "defaults are missing: " + changed
	}
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(defaulted, runtime.InternalGroupVersioner)
	if err != nil {
		return err.Error()
	}
	if pod, is := internal.(*core.Pod); is {
		whole := pod.DeepCopy()
		podutil.DefaultPodLevelResources(whole)
		if changed := diff.Diff(pod.Spec.Resources, whole.Spec.Resources); changed != "" {
			return "defaults are missing: " + changed
		}
	}
	if errors := broken(internal); len(errors) > 0 {
		return errors.ToAggregate().Error()
	}
	return ""
}

func broken(internal runtime.Object) field.ErrorList {
	switch object := internal.(type) {
	case *core.Node:
		return corevalidation.ValidateNode(object)
	case *core.Pod:
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&object.Spec, nil, &object.ObjectMeta, nil)
		options.ResourceIsPod = true
		return corevalidation.ValidatePodCreate(object, options)
	case *core.Namespace:
		return corevalidation.ValidateNamespace(object)
	case *core.PersistentVolume:
		options := corevalidation.ValidationOptionsForPersistentVolume(object, nil)
		return corevalidation.ValidatePersistentVolume(object, options)
	case *core.PersistentVolumeClaim:
		options := corevalidation.ValidationOptionsForPersistentVolumeClaim(object, nil)
		return corevalidation.ValidatePersistentVolumeClaim(object, options)
	case *storage.StorageClass:
		return storagevalidation.ValidateStorageClass(object)
	case *storage.CSINode:
		return storagevalidation.ValidateCSINode(object)
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("no rules are known for %T", internal))}
}
