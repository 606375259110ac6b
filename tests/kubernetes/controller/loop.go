package main

import (
	"context"
	"flag"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// loop is a controller with a mistake. Without a label, each of its writes to a status brings the event for the next one; with one, it
// insists on that label of its widgets, whatever others say.
func loop(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("loop", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "whose widgets")
	agent := flags.String("agent", "loop/1", "its user agent")
	label := flags.String("label", "", "the owner that its widgets have to have")
	_ = flags.Parse(args)
	mgr, err := managerOf(*agent, *namespace, ctrl.Options{})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&Widget{}).Complete(&looping{mgr.GetClient(), *label}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

type looping struct {
	client.Client
	label string
}

// Reconcile takes a moment, and writes.
func (l *looping) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var widget Widget
	if err := l.Get(ctx, request.NamespacedName, &widget); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	var err error
	if l.label == "" {
		widget.Status.Observed++
		err = l.Status().Update(ctx, &widget)
	} else if widget.Labels["owner"] != l.label {
		widget.Labels = map[string]string{"owner": l.label}
		err = l.Update(ctx, &widget)
	}
	report("written", failure(fields{"name": request.Name, "micros": time.Since(begin).Microseconds()}, err))
	return ctrl.Result{}, err
}
