package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// kinds that have an informer in every namespace.
var kinds = []client.Object{&corev1.ConfigMap{}, &corev1.ServiceAccount{}, &corev1.Secret{}}

// runManager is a manager as kubebuilder writes it, with leader election, and an informer for each kind in each namespace. It reports
// what they see of the objects of one name, which come after the informers are in step.
func runManager(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("manager", flag.ExitOnError)
	prefix := flags.String("prefix", "", "what the namespaces' names begin with; the lease is in the first")
	count := flags.Int("count", 100, "how many namespaces there are")
	late := flags.String("late", "late", "the objects to report")
	_ = flags.Parse(args)
	ctrl.SetLogger(logr.Discard())
	begin := time.Now()
	namespaces := map[string]cache.Config{}
	for i := range *count {
		namespaces[fmt.Sprint(*prefix, i)] = cache.Config{}
	}
	mgr, err := ctrl.NewManager(config.GetConfigOrDie(), ctrl.Options{
		Metrics:                       server.Options{BindAddress: "0"},
		Cache:                         cache.Options{DefaultNamespaces: namespaces},
		LeaderElection:                true,
		LeaderElectionID:              "manager",
		LeaderElectionNamespace:       *prefix + "0",
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		report("leading", nil)
		for _, kind := range kinds {
			// Otherwise it waits for one namespace after the other.
			informer, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false))
			if err != nil {
				return err
			}
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
				if found := object.(client.Object); found.GetName() == *late {
					report("seen", fields{"namespace": found.GetNamespace()})
				}
			}})
			if err != nil {
				return err
			}
		}
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the informers did not get in step")
		}
		report("synced", fields{"count": *count * len(kinds), "micros": time.Since(begin).Microseconds()})
		return nil
	}))
	if err != nil {
		return err
	}
	err = mgr.Start(ctx)
	report("stopped", failure(fields{}, err))
	return err
}
