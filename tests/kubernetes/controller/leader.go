package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// timed reports how long every call of a client took, to the response head.
type timed struct{ next http.RoundTripper }

func (t timed) RoundTrip(request *http.Request) (*http.Response, error) {
	begin := time.Now()
	response, err := t.next.RoundTrip(request)
	more := fields{"verb": request.Method, "micros": time.Since(begin).Microseconds()}
	if err == nil {
		more["code"] = response.StatusCode
	} else {
		more["error"] = err.Error()
	}
	report("lease", more)
	return response, err
}

// leader only campaigns and leads, with controller-runtime's times and its 5 s limit on every call.
func leader(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("leader", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "where the lease is")
	name := flags.String("name", "leader", "the lease")
	retry := flags.Duration("retry", 2*time.Second, "how often it is renewed")
	_ = flags.Parse(args)
	config, _, err := connect("leader")
	if err != nil {
		return err
	}
	config.Timeout = 5 * time.Second
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return timed{next} })
	lock, err := leaseLock(config, *namespace, *name)
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: *retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { report("leading", nil) },
			OnStoppedLeading: func() { report("stopped", nil) },
		},
	})
	return nil
}

func leaseLock(config *rest.Config, namespace, name string) (*resourcelock.LeaseLock, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "process-" + strconv.Itoa(os.Getpid())},
	}, nil
}
