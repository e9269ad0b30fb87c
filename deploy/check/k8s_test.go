package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	sigsyaml "sigs.k8s.io/yaml"
)

const k8sDir = "../k8s"

// kinds are the types that the manifests use.
var kinds = map[string]func() metav1.Object{
	"v1/Namespace":                       func() metav1.Object { return &corev1.Namespace{} },
	"v1/ConfigMap":                       func() metav1.Object { return &corev1.ConfigMap{} },
	"v1/Service":                         func() metav1.Object { return &corev1.Service{} },
	"v1/Pod":                             func() metav1.Object { return &corev1.Pod{} },
	"apps/v1/StatefulSet":                func() metav1.Object { return &appsv1.StatefulSet{} },
	"apps/v1/DaemonSet":                  func() metav1.Object { return &appsv1.DaemonSet{} },
	"policy/v1/PodDisruptionBudget":      func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	"networking.k8s.io/v1/NetworkPolicy": func() metav1.Object { return &networkingv1.NetworkPolicy{} },
}

// objects decodes the documents of a manifest: an unknown field, or one that is
// there twice, is an error.
func objects(t *testing.T, file string) []metav1.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(k8sDir, file))
	if err != nil {
		t.Fatal(err)
	}
	var all []metav1.Object
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind metav1.TypeMeta
		if err := sigsyaml.Unmarshal(doc, &kind); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if kind.Kind == "" {
			continue // only comments
		}
		make, known := kinds[kind.APIVersion+"/"+kind.Kind]
		if !known {
			t.Fatalf("%s: %s/%s is no kind that this test knows", file, kind.APIVersion, kind.Kind)
		}
		o := make()
		if err := sigsyaml.UnmarshalStrict(doc, o); err != nil {
			t.Fatalf("%s: %s: %v", file, kind.Kind, err)
		}
		all = append(all, o)
	}
}

// manifests returns the objects of all manifests, by their files.
func manifests(t *testing.T) map[string][]metav1.Object {
	t.Helper()
	all := map[string][]metav1.Object{}
	for _, dir := range kustomizations {
		files, err := filepath.Glob(filepath.Join(k8sDir, dir, "*.yaml"))
		if err != nil || len(files) < 2 {
			t.Fatalf("%d manifests, %v", len(files), err)
		}
		for _, file := range files {
			if name := filepath.Base(file); name != "kustomization.yaml" {
				all[filepath.Join(dir, name)] = objects(t, filepath.Join(dir, name))
			}
		}
	}
	return all
}

// kustomizations are the folders that are applied, one or the other.
var kustomizations = []string{".", "machines"}

// TestKustomizationsNameEveryFile of theirs, and one version: of the images and of every object.
func TestKustomizationsNameEveryFile(t *testing.T) {
	for _, dir := range kustomizations {
		text, err := os.ReadFile(filepath.Join(k8sDir, dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var k struct {
			APIVersion string   `json:"apiVersion"`
			Kind       string   `json:"kind"`
			Resources  []string `json:"resources"`
			Images     []struct {
				Name   string `json:"name"`
				NewTag string `json:"newTag"`
			} `json:"images"`
			Labels []struct {
				Pairs            map[string]string `json:"pairs"`
				IncludeTemplates bool              `json:"includeTemplates"`
			} `json:"labels"`
		}
		if err := sigsyaml.UnmarshalStrict(text, &k); err != nil {
			t.Fatal(err)
		}
		if k.APIVersion != "kustomize.config.k8s.io/v1beta1" || k.Kind != "Kustomization" {
			t.Errorf("%s: it is a %s %s", dir, k.APIVersion, k.Kind)
		}
		if len(k.Images) != 2 || len(k.Labels) != 1 || k.Images[0].NewTag != k.Images[1].NewTag || k.Images[0].NewTag == "" ||
			k.Images[0].NewTag != k.Labels[0].Pairs["app.kubernetes.io/version"] || !k.Labels[0].IncludeTemplates {
			t.Errorf("%s: images %+v, labels %+v: want one version", dir, k.Images, k.Labels)
		}
		for file := range manifests(t) {
			if slices.Contains(k.Resources, filepath.Base(file)) != (filepath.Dir(file) == dir) {
				t.Errorf("%s has %q; want the manifests beside it", dir, k.Resources)
			}
		}
		for _, w := range workloads(t) {
			for _, c := range containers(w) {
				name, _, _ := strings.Cut(c.Image, ":")
				if own := name == k.Images[0].Name || name == k.Images[1].Name; !own && strings.HasPrefix(name, "fabricd") {
					t.Errorf("%s: %s gives the image %s of %s no version", dir, w.file, c.Image, c.Name)
				}
			}
		}
	}
}

func TestNamesAndNamespaces(t *testing.T) {
	seen := map[string]bool{}
	for file, all := range manifests(t) {
		spaces := map[string]bool{"fabricd": true}
		for _, o := range all {
			if ns, ok := o.(*corev1.Namespace); ok {
				spaces[ns.Name] = true
			}
		}
		for _, o := range all {
			key := fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
			if seen[key] {
				t.Errorf("%s: %s is there twice", file, key)
			}
			seen[key] = true
			if errs := validation.IsDNS1123Label(o.GetName()); len(errs) > 0 {
				t.Errorf("%s: %s: %v", file, key, errs)
			}
			if _, ok := o.(*corev1.Namespace); !ok && !spaces[o.GetNamespace()] {
				t.Errorf("%s: %s is in no namespace of these files", file, key)
			}
			if o.GetLabels()["app.kubernetes.io/part-of"] != "fabricd" && o.GetNamespace() == "" {
				t.Errorf("%s: %s is not labelled as a part of fabricd: the network policy does not know it", file, key)
			}
		}
	}
}

// A workload is a pod and the object that makes it.
type workload struct {
	file, name, namespace string
	labels                map[string]string
	spec                  corev1.PodSpec
	claims                []corev1.PersistentVolumeClaim
	selector              *metav1.LabelSelector // nil: a pod by itself
	service               string
}

func workloads(t *testing.T) []workload {
	t.Helper()
	var all []workload
	for file, objects := range manifests(t) {
		for _, o := range objects {
			w := workload{file: file, name: o.GetName(), namespace: o.GetNamespace()}
			switch o := o.(type) {
			case *appsv1.StatefulSet:
				w.labels, w.spec = o.Spec.Template.Labels, o.Spec.Template.Spec
				w.claims, w.selector, w.service = o.Spec.VolumeClaimTemplates, o.Spec.Selector, o.Spec.ServiceName
			case *appsv1.DaemonSet:
				w.labels, w.spec, w.selector = o.Spec.Template.Labels, o.Spec.Template.Spec, o.Spec.Selector
			case *corev1.Pod:
				w.labels, w.spec = o.Labels, o.Spec
			default:
				continue
			}
			all = append(all, w)
		}
	}
	if len(all) < 4 {
		t.Fatalf("%d workloads: the test does not see them", len(all))
	}
	return all
}

// TestPodsKeepTheStandard judges every pod as the API server's admission does:
// all are restricted, but those that say why they are not.
func TestPodsKeepTheStandard(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	latest := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	// Exceptions that machines/machines.yaml needs to reach the machine's folders.
	excused := map[string][]string{
		"fabricd-machines/fabricd": {"restricted volume types", "unrestricted capabilities", "runAsNonRoot != true", "runAsUser=0"},
		"fabricd-machines/visitor": {"restricted volume types"},
	}
	for _, w := range workloads(t) {
		var found []string
		for _, r := range evaluator.EvaluatePod(latest, &metav1.ObjectMeta{Name: w.name}, &w.spec) {
			if !r.Allowed {
				found = append(found, r.ForbiddenReason)
			}
		}
		// Exactly: an excuse that is no longer needed is one too many.
		want := excused[w.namespace+"/"+w.name]
		if slices.Sort(found); !slices.Equal(found, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: %s: the standard forbids %q, excused are %q", w.file, w.name, found, want)
		}
	}
}

// TestEveryContainerIsHardened holds containers to more than the standard asks
// for. Of all, one is root.
func TestEveryContainerIsHardened(t *testing.T) {
	for _, w := range workloads(t) {
		if s := w.spec; s.HostNetwork || s.HostPID || s.HostIPC || s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken {
			t.Errorf("%s: %s shares a namespace of the machine, or gets a token of the API server", w.file, w.name)
		}
		for _, c := range containers(w) {
			what := w.file + ": " + w.name + "/" + c.Name
			s := c.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
				s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %+v: want a read-only root, no escalation, and no capability", what, s)
				continue
			}
			root := s.RunAsUser != nil && *s.RunAsUser == 0
			if (root || len(s.Capabilities.Add) > 0) && c.Name != "folders" {
				t.Errorf("%s: only the container that makes the machine's folders may be root", what)
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s: want a request and a limit of memory, and no limit of CPU", what)
			}
		}
	}
}

func containers(w workload) []corev1.Container {
	return append(slices.Clone(w.spec.InitContainers), w.spec.Containers...)
}

// TestPodsHoldTogether checks names that must agree, which the API server
// does not check.
func TestPodsHoldTogether(t *testing.T) {
	services := map[string]*corev1.Service{}
	configs := map[string]bool{}
	for _, all := range manifests(t) {
		for _, o := range all {
			switch o := o.(type) {
			case *corev1.Service:
				services[o.Namespace+"/"+o.Name] = o
			case *corev1.ConfigMap:
				configs[o.Namespace+"/"+o.Name] = true
			}
		}
	}
	for _, w := range workloads(t) {
		what := w.file + ": " + w.name
		if w.selector != nil {
			s, err := metav1.LabelSelectorAsSelector(w.selector)
			if err != nil || s.Empty() || !s.Matches(labels.Set(w.labels)) {
				t.Errorf("%s: its selector %v does not select its pods %v", what, w.selector, w.labels)
			}
		}
		if w.service != "" {
			service := services[w.namespace+"/"+w.service]
			if service == nil || service.Spec.ClusterIP != corev1.ClusterIPNone || !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(w.labels)) {
				t.Errorf("%s: its service %q is not headless, or not of its pods", what, w.service)
			}
		}
		volumes := map[string]bool{}
		for _, v := range w.spec.Volumes {
			volumes[v.Name] = false
			if v.ConfigMap != nil && !configs[w.namespace+"/"+v.ConfigMap.Name] {
				t.Errorf("%s: no ConfigMap %s in its namespace", what, v.ConfigMap.Name)
			}
			if v.Secret != nil && (v.Secret.SecretName != "fabricd-join" || *v.Secret.DefaultMode != 0o440) {
				t.Errorf("%s: secret %+v, want fabricd-join, mode 0440", what, v.Secret)
			}
		}
		for _, c := range w.claims {
			volumes[c.Name] = false
		}
		ports := map[string]bool{}
		for _, c := range containers(w) {
			for _, m := range c.VolumeMounts {
				if _, ok := volumes[m.Name]; !ok {
					t.Errorf("%s/%s: mounts %s, which is no volume of the pod", what, c.Name, m.Name)
				}
				volumes[m.Name] = true
			}
			for _, p := range c.Ports {
				if ports[p.Name] || len(validation.IsValidPortName(p.Name)) > 0 {
					t.Errorf("%s/%s: port name %q is there twice, or none", what, c.Name, p.Name)
				}
				ports[p.Name] = true
			}
			held(t, what+"/"+c.Name, c)
		}
		for name, used := range volumes {
			if !used {
				t.Errorf("%s: volume %s is mounted nowhere", what, name)
			}
		}
		if s := services[w.namespace+"/"+w.service]; s != nil {
			for _, p := range s.Spec.Ports {
				if !ports[p.TargetPort.StrVal] {
					t.Errorf("%s: its service leads to port %q, which it does not have", what, p.TargetPort.StrVal)
				}
			}
		}
	}
}

// held checks one container against the needs of fabricd and its applications.
func held(t *testing.T, what string, c corev1.Container) {
	t.Helper()
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.Value == "" && (e.ValueFrom == nil || e.ValueFrom.FieldRef == nil) {
			t.Errorf("%s: variable %s has no value", what, e.Name)
		}
	}
	mounted := func(path string) *corev1.VolumeMount {
		for _, m := range c.VolumeMounts {
			if path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/") {
				return &m
			}
		}
		return nil
	}
	for _, name := range []string{"FABRIC_CONFIG", "FABRIC_TOKEN_FILE", "FABRIC_STATE_DIR", "FABRIC_SOCKET", "FABRIC_ADMIN"} {
		if path, ok := env[name]; ok && mounted(path) == nil {
			t.Errorf("%s: %s is %s, where nothing is mounted", what, name, path)
		}
	}
	if c.Name != "fabricd" {
		if m := mounted("/run/fabricd/fabric.sock"); env["FABRIC_SOCKET"] != "" && (m == nil || !m.ReadOnly) {
			t.Errorf("%s: an application could replace its node's socket: want it read-only", what)
		}
		return
	}
	for name, probe := range map[string]*corev1.Probe{"health": c.ReadinessProbe, "status": c.LivenessProbe} {
		if probe == nil || probe.Exec == nil || !slices.Equal(probe.Exec.Command, []string{"/fabricd", name}) {
			t.Errorf("%s: probe %+v, want fabricd %s", what, probe, name)
		}
	}
	if _, ok := env["FABRIC_ADVERTISE"]; !ok {
		t.Errorf("%s: want the pod's address as FABRIC_ADVERTISE", what)
	}
}

// TestBudgetsAndPoliciesSelect pods that are there.
func TestBudgetsAndPoliciesSelect(t *testing.T) {
	pods := workloads(t)
	selects := func(namespace string, selector *metav1.LabelSelector) int {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, w := range pods {
			if w.namespace == namespace && s.Matches(labels.Set(w.labels)) {
				n++
			}
		}
		return n
	}
	budgets, policies := 0, 0
	for file, all := range manifests(t) {
		for _, o := range all {
			switch o := o.(type) {
			case *policyv1.PodDisruptionBudget:
				budgets++
				if o.Spec.MaxUnavailable == nil || o.Spec.MaxUnavailable.IntVal != 1 || selects(o.Namespace, o.Spec.Selector) < 3 {
					t.Errorf("%s: budget %+v: want one at a time of the host and all nodes", file, o.Spec)
				}
			case *networkingv1.NetworkPolicy:
				policies++
				if selects(o.Namespace, &o.Spec.PodSelector) < 3 {
					t.Errorf("%s: the policy is for no pods", file)
				}
				open := map[string]bool{}
				for _, rule := range o.Spec.Ingress {
					for _, p := range rule.Ports {
						open[fmt.Sprint(p.Port, *p.Protocol)] = true
					}
				}
				if len(open) != 4 {
					t.Errorf("%s: open are %v, want two ports, each for TCP and UDP", file, open)
				}
			}
		}
	}
	if budgets != 1 || policies != 1 {
		t.Errorf("%d budgets and %d policies, want one of each", budgets, policies)
	}
}

// TestTheChecksBite feeds the decoder inputs that it must refuse.
func TestTheChecksBite(t *testing.T) {
	for _, wrong := range []string{
		"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, imagee: b}]}",
		"apiVersion: v1\nkind: Pod\nkind: Pod",
		"apiVersion: v1\nkind: Pod\nspec: {containers: {name: a}}",
	} {
		if err := sigsyaml.UnmarshalStrict([]byte(wrong), &corev1.Pod{}); err == nil {
			t.Errorf("decoded: %s", wrong)
		}
	}
}
