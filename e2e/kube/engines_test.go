package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// enginePort is the port that engines serve on.
const enginePort = 30000

// selector finds the pods of the tests.
const selector = "app=sglang"

// pod makes a pod that runs, is ready and has an address, as the scheduler and
// the kubelet would leave it. It returns its UID.
func (c *cluster) pod(name, ip string, annotations map[string]string) types.UID {
	c.t.Helper()
	uid, err := c.makePod(name, ip, annotations)
	if err != nil {
		c.t.Fatal(err)
	}
	return uid
}

func (c *cluster) makePod(name, ip string, annotations map[string]string) (types.UID, error) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "sglang"}, Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName: "node-0", // the end of a pod on a node waits for its kubelet
			Containers: []corev1.Container{{
				Name: "engine", Image: "engine",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: enginePort}},
			}},
		},
	}
	pods := c.core.Pods(engineNS)
	p, err := pods.Create(c.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	_, err = pods.UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
	return p.UID, err
}

// terminate asks for the end of a pod, which then waits for its kubelet.
func (c *cluster) terminate(name string) {
	c.t.Helper()
	if err := c.core.Pods(engineNS).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// remove ends a pod at once, as its kubelet does at the end.
func (c *cluster) remove(name string) {
	c.t.Helper()
	if err := c.removeNow(name); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) removeNow(name string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	return c.core.Pods(engineNS).Delete(c.t.Context(), name, now)
}

// endpoint is one of a slice, ready unless conditions say otherwise.
func endpoint(pod, ip string, conditions discoveryv1.EndpointConditions) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{ip}, Conditions: conditions, Zone: new("zone-a"),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: engineNS, Name: pod, UID: types.UID("uid-of-" + pod)},
	}
}

// slice makes a slice of a Service, or replaces its endpoints.
func (c *cluster) slice(name, service string, endpoints ...discoveryv1.Endpoint) {
	c.t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{"loadplane.dev/role": "decode"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(enginePort))}},
		Endpoints:   endpoints,
	}
	slices := c.discovery.EndpointSlices(engineNS)
	old, err := slices.Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		_, err = slices.Create(c.t.Context(), s, metav1.CreateOptions{})
	} else {
		s.ResourceVersion = old.ResourceVersion
		_, err = slices.Update(c.t.Context(), s, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// removeSlice deletes a slice.
func (c *cluster) removeSlice(name string) {
	c.t.Helper()
	if err := c.discovery.EndpointSlices(engineNS).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// worker is the id of a pod's engine.
func worker(pod string) string { return fmt.Sprintf("%s/%s/%d", engineNS, pod, enginePort) }
