// Command kubelet runs the tests' pods as processes of this machine, in the order and with the surroundings that kubelet gives them.
//
// KWOK marks pods as running at once and starts no process. A native sidecar must be up before the containers and go down after them, which
// can only be tested with real processes. So this command takes every pod (there is no scheduler either). It gives the pod its own network,
// volumes, service account tokens, and for each container a root folder with only its image: one program. Init containers start in turn; one
// with restartPolicy Always holds up the next until its startup probe has passed. At the end the containers are asked to stop first, then the
// sidecars, the last one first.
//
// It is not kubelet: it leaves out users, limits, liveness and readiness, and does not restart a container that ends.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

// node is the only node.
type node struct {
	name    string
	api     string            // where the API server listens
	images  map[string]string // program of each image
	slow    map[string]time.Duration
	folder  string
	clients *kubernetes.Clientset

	turn sync.Mutex
	pods map[types.UID]*pod
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "sandbox" {
		log.Fatal(sandbox(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 1 && os.Args[1] == "shim" {
		log.Fatal(shim(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 1 && os.Args[1] == "container" {
		log.Fatal(container(os.Args[2]))
	}
	n := &node{images: map[string]string{}, slow: map[string]time.Duration{}, pods: map[types.UID]*pod{}}
	flag.StringVar(&n.name, "name", "node", "the node's name")
	flag.StringVar(&n.api, "api", "", "address of the API server")
	flag.StringVar(&n.folder, "folder", "", "where pods keep what they have")
	flag.Func("image", "NAME=PROGRAM", func(value string) error {
		name, program, _ := strings.Cut(value, "=")
		n.images[name] = program
		return nil
	})
	flag.Func("slow", "NAME=TIME, what an image's program takes before it does anything", func(value string) error {
		name, text, _ := strings.Cut(value, "=")
		time, err := time.ParseDuration(text)
		n.slow[name] = time
		return err
	})
	kubeconfig := flag.String("kubeconfig", "", "of one who may do everything")
	serving := serveFlags()
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.QPS = -1
	n.clients = kubernetes.NewForConfigOrDie(config)
	port := serving.start(n)
	if err := n.register(context.Background(), port); err != nil {
		log.Fatal(err)
	}
	pods := informers.NewSharedInformerFactory(n.clients, 0).Core().V1().Pods().Informer()
	_, _ = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.look(object.(*corev1.Pod)) },
		UpdateFunc: func(_, object any) { n.look(object.(*corev1.Pod)) },
	})
	// Without it the node counts as lost after a minute, and no pod of a DaemonSet is made for it.
	heartbeat := lease.NewController(clock.RealClock{}, n.clients, n.name, 40, nil, 10*time.Second, n.name, corev1.NamespaceNodeLease, nil)
	go heartbeat.Run(context.Background())
	report("ready", nil)
	pods.Run(make(chan struct{}))
}

// register makes the node known, with the port where its streams are.
func (n *node) register(ctx context.Context, port int) error {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	_, err := n.clients.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !errors.IsAlreadyExists(err) {
		return err
	}
	status, _ := json.Marshal(map[string]any{"status": corev1.NodeStatus{
		Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}})
	_, err = n.clients.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
	return err
}

// look does what a pod's state asks for: take it, run it, or end it.
func (n *node) look(object *corev1.Pod) {
	n.turn.Lock()
	defer n.turn.Unlock()
	known := n.pods[object.UID]
	switch {
	case known != nil && object.DeletionTimestamp != nil:
		known.end()
	case object.DeletionTimestamp != nil && object.Spec.NodeName == "":
	case known == nil && object.Spec.NodeName == "":
		go n.take(object)
	case known == nil && object.Spec.NodeName == n.name && object.DeletionTimestamp == nil:
		p := newPod(n, object)
		n.pods[object.UID] = p
		go p.live()
	}
}

// take is all the scheduling there is.
func (n *node) take(object *corev1.Pod) {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: object.Name, Namespace: object.Namespace, UID: object.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: n.name},
	}
	if err := n.clients.CoreV1().Pods(object.Namespace).Bind(context.Background(), binding, metav1.CreateOptions{}); err != nil && !errors.IsConflict(err) {
		log.Printf("%s is not bound: %v", object.Name, err)
	}
}

// find gives a running container of a pod.
func (n *node) find(namespace, name, container string) *running {
	n.turn.Lock()
	defer n.turn.Unlock()
	for _, p := range n.pods {
		if p.object.Namespace == namespace && p.object.Name == name {
			return p.find(container)
		}
	}
	return nil
}

var (
	reports   = json.NewEncoder(os.Stdout)
	reporting sync.Mutex
)

// report writes one line: what happened, and when, in microseconds since the epoch.
func report(event string, more map[string]any) {
	line := map[string]any{"event": event, "at": time.Now().UnixMicro()}
	for name, value := range more {
		line[name] = value
	}
	reporting.Lock()
	defer reporting.Unlock()
	_ = reports.Encode(line)
}
