package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Widget is the custom resource: its controller copies spec.value to status.observed.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              WidgetSpec   `json:"spec,omitempty"`
	Status            WidgetStatus `json:"status,omitempty"`
}

// WidgetSpec is what is wanted.
type WidgetSpec struct {
	Value int64 `json:"value"`
}

// WidgetStatus is what has been seen.
type WidgetStatus struct {
	Observed int64 `json:"observed,omitempty"`
}

// WidgetList is several widgets.
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Widget `json:"items"`
}

// DeepCopyObject copies a widget; only its metadata holds pointers.
func (w *Widget) DeepCopyObject() runtime.Object {
	out := *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject copies a list.
func (l *WidgetList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Widget, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*Widget)
	}
	return &out
}

var group = schema.GroupVersion{Group: "tidegate.test", Version: "v1"}

// managerOf makes a manager that knows widgets and configmaps, looks at one namespace, and serves no metrics.
func managerOf(agent, namespace string, options ctrl.Options) (ctrl.Manager, error) {
	ctrl.SetLogger(logr.Discard())
	config, _, err := connect(agent)
	if err != nil {
		return nil, err
	}
	options.Scheme = runtime.NewScheme()
	options.Scheme.AddKnownTypes(group, &Widget{}, &WidgetList{})
	metav1.AddToGroupVersion(options.Scheme, group)
	if err := corev1.AddToScheme(options.Scheme); err != nil {
		return nil, err
	}
	options.Metrics = server.Options{BindAddress: "0"}
	options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}}
	return ctrl.NewManager(config, options)
}

// manage is an ordinary controller: one worker, leader election, today's default rate limiter, unless a flag says
// otherwise.
func manage(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("manage", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "whose widgets, and where the lease is")
	create := flags.Int("create", 0, "create this many widgets once leading")
	creators := flags.Int("creators", 1, "by so many goroutines")
	workers := flags.Int("workers", 1, "reconciles at a time")
	classic := flags.Bool("classic", false, "with client-go's classic rate limiter: backoff by object, and 10 retries a second of all")
	_ = flags.Parse(args)
	mgr, err := managerOf("widget-controller", *namespace, ctrl.Options{
		LeaderElection:                true,
		LeaderElectionID:              "widget-controller",
		LeaderElectionNamespace:       *namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	options := controller.Options{MaxConcurrentReconciles: *workers}
	if *classic {
		options.RateLimiter = workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]()
	}
	builder := ctrl.NewControllerManagedBy(mgr).For(&Widget{}).WithOptions(options)
	if err := builder.Complete(&observer{mgr.GetClient()}); err != nil {
		return err
	}
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		report("leading", nil)
		if *create > 0 {
			createWidgets(ctx, mgr.GetClient(), *namespace, *create, *creators)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	err = mgr.Start(ctx)
	report("stopped", failure(fields{}, err))
	return err
}

func createWidgets(ctx context.Context, to client.Client, namespace string, count, creators int) {
	begin := time.Now()
	var all sync.WaitGroup
	for first := range creators {
		all.Go(func() {
			for i := first; i < count; i += creators {
				widget := &Widget{Spec: WidgetSpec{Value: 1}}
				widget.Name, widget.Namespace = fmt.Sprintf("widget-%d", i), namespace
				if err := to.Create(ctx, widget); err != nil {
					report("create_failed", failure(fields{"name": widget.Name}, err))
				}
			}
		})
	}
	all.Wait()
	report("created", fields{"count": count, "micros": time.Since(begin).Microseconds()})
}

type observer struct{ client.Client }

// Reconcile copies the value. What it returns decides the retry, as in every controller.
func (o *observer) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	begin := time.Now()
	var widget Widget
	if err := o.Get(ctx, request.NamespacedName, &widget); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if widget.Status.Observed == widget.Spec.Value {
		return ctrl.Result{}, nil
	}
	widget.Status.Observed = widget.Spec.Value
	err := o.Status().Update(ctx, &widget)
	took := fields{"name": request.Name, "value": widget.Spec.Value, "micros": time.Since(begin).Microseconds()}
	report("reconcile", failure(took, err))
	return ctrl.Result{}, err
}
