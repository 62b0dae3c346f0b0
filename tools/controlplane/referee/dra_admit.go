// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	resourcevalidation "k8s.io/kubernetes/pkg/apis/resource/validation"
)

// admitClaims answers the question "admit-claims": which objects of a case of "allocate" would an API server not have
// stored as they are? A claim's allocation is checked as an update of the claim.
func admitClaims(_ *worker, line []byte) (any, error) {
	var c claimsCase
	if err := readOne("case", line, &c); err != nil {
		return nil, err
	}
	answer := &admitAnswer{ID: c.ID, Problems: []string{}}
	check := func(at string, object runtime.Object) {
		if problem := unfitForClaims(object); problem != "" {
			answer.Problems = append(answer.Problems, at+": "+problem)
		}
	}
	for i, raw := range c.Asked {
		at := fmt.Sprintf("asked[%d].", i)
		asked, err := raw.read(at)
		if err != nil {
			return nil, err
		}
		if problem := unfit(asked.node); problem != "" {
			answer.Problems = append(answer.Problems, at+"node: "+problem)
		}
		checkAll(check, at+"slices", asked.slices)
		checkAll(check, at+"classes", asked.classes)
		checkAll(check, at+"claims", asked.claims)
		checkAll(check, at+"allocated", asked.allocated)
	}
	return answer, nil
}

func unfitForClaims(object runtime.Object) string {
	defaulted := object.DeepCopyObject()
	legacyscheme.Scheme.Default(defaulted)
	if changed := diff.Diff(object, defaulted); changed != "" {
		return "defaults are missing: " + changed
	}
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(defaulted, runtime.InternalGroupVersioner)
	if err != nil {
		return err.Error()
	}
	options := map[string]bool{}
	for name := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		options[string(name)] = utilfeature.DefaultFeatureGate.Enabled(name)
	}
	errors := legacyscheme.Scheme.Validate(context.Background(), options, object)
	errors = append(errors, brokenForClaims(internal)...)
	if len(errors) > 0 {
		return errors.ToAggregate().Error()
	}
	return ""
}

func brokenForClaims(internal runtime.Object) field.ErrorList {
	switch object := internal.(type) {
	case *resource.ResourceSlice:
		return resourcevalidation.ValidateResourceSlice(object)
	case *resource.DeviceClass:
		return resourcevalidation.ValidateDeviceClass(object)
	case *resource.ResourceClaim:
		before := object.DeepCopy()
		before.Status = resource.ResourceClaimStatus{}
		before.ResourceVersion, object.ResourceVersion = "1", "1"
		errors := resourcevalidation.ValidateResourceClaim(before)
		return append(errors, resourcevalidation.ValidateResourceClaimStatusUpdate(object, before)...)
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("no rules are known for %T", internal))}
}
