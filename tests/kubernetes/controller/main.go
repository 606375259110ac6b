// Command controller is the real Go client of the tests: controllers, a herd, watches, informers, a leader and a loop.
// Every mode but script and the last two takes its cluster from KUBECONFIG and reports on stdout, one JSON object per line: `event`, `at`
// (microseconds since the epoch) and, where something took time, `micros`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

var modes = map[string]func(context.Context, []string) error{
	"manage":    manage,
	"herd":      herd,
	"watches":   watches,
	"informers": informers,
	"leader":    leader,
	"manager":   runManager,
	"operate":   operate,
	"script":    script,
	"ensure":    ensure,
	"refuse":    refuse,
	"upload":    upload,
	"loop":      loop,
	"busy":      busy,
}

func main() {
	klog.SetOutput(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) < 2 || modes[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: controller manage|herd|watches|informers|leader|manager|operate|script|ensure|refuse|upload|loop|busy [flags]")
		os.Exit(64)
	}
	if err := modes[os.Args[1]](ctx, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var (
	reports = json.NewEncoder(os.Stdout)
	turn    sync.Mutex
)

// fields of a report.
type fields map[string]any

// report writes one line.
func report(event string, more fields) {
	line := fields{"event": event, "at": time.Now().UnixMicro()}
	for name, value := range more {
		line[name] = value
	}
	turn.Lock()
	defer turn.Unlock()
	_ = reports.Encode(line)
}

// failure adds what an error says, as far as it is a Status.
func failure(more fields, err error) fields {
	if err == nil {
		return more
	}
	more["error"] = err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		more["code"] = status.Status().Code
	}
	return more
}

// connect gives a client without a limiter of its own, as controller-runtime's are today.
func connect(agent string) (*rest.Config, *kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, nil, err
	}
	config.QPS = -1
	config.UserAgent = agent
	clients, err := kubernetes.NewForConfig(config)
	return config, clients, err
}
