package main

import (
	"context"
	"flag"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// operate is an operator as they usually are: it polls for what is not there, creates what it has created
// already, writes an object of an old version, and comes back to an object again and again.
func operate(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("operate", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "whose widgets")
	rounds := flags.Int("rounds", 5, "how often each widget is come back to")
	_ = flags.Parse(args)
	mgr, err := managerOf("operator", *namespace, ctrl.Options{})
	if err != nil {
		return err
	}
	operator := &operator{Client: mgr.GetClient(), live: mgr.GetAPIReader(), rounds: *rounds, done: map[string]int{}}
	if err := ctrl.NewControllerManagedBy(mgr).For(&Widget{}).Complete(operator); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

type operator struct {
	client.Client
	live   client.Reader
	rounds int
	turn   sync.Mutex
	done   map[string]int
}

// Reconcile makes one round: what the API server says no to is reported with its status.
func (o *operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	o.turn.Lock()
	round := o.done[request.Name]
	o.turn.Unlock()
	if round >= o.rounds {
		return ctrl.Result{}, nil
	}
	said := func(what string, err error) {
		if err != nil {
			report("said_no", failure(fields{"what": what, "name": request.Name}, err))
		}
	}
	key := types.NamespacedName{Namespace: request.Namespace, Name: request.Name}
	missing := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: request.Name}}
	said("poll", o.live.Get(ctx, key, missing))
	said("delete", o.Delete(ctx, missing))
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: request.Name}}
	if err := o.Create(ctx, child); err != nil {
		said("create", err)
		if err := o.live.Get(ctx, key, child); err != nil {
			return ctrl.Result{}, err
		}
	}
	stale := child.DeepCopy()
	child.Data = map[string]string{"round": time.Now().String()}
	if err := o.Update(ctx, child); err != nil {
		return ctrl.Result{}, err
	}
	stale.Data = map[string]string{"round": "an older one"}
	conflict := o.Update(ctx, stale)
	said("update", conflict)
	wrong := child.DeepCopy()
	wrong.Data = map[string]string{"not a key": ""}
	said("validate", o.Update(ctx, wrong))
	o.turn.Lock()
	o.done[request.Name] = round + 1
	o.turn.Unlock()
	report("round", fields{"name": request.Name, "round": round + 1})
	if apierrors.IsConflict(conflict) && round%2 == 0 {
		return ctrl.Result{}, conflict // as most operators do: the work queue brings it back
	}
	return ctrl.Result{RequeueAfter: 20 * time.Millisecond}, nil
}
