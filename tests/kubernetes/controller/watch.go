package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apifields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watches opens many watches, then shows that a read and a lease update still get through, then waits.
func watches(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("watches", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "where the objects are")
	count := flags.Int("count", 100, "how many")
	_ = flags.Parse(args)
	_, clients, err := connect("watches")
	if err != nil {
		return err
	}
	begin := time.Now()
	var opening sync.WaitGroup
	for i := range *count {
		opening.Go(func() { openWatch(ctx, clients, *namespace, i) })
	}
	opening.Wait()
	report("open", fields{"count": *count, "micros": time.Since(begin).Microseconds()})
	probe(ctx, clients, *namespace)
	<-ctx.Done()
	return nil
}

func openWatch(ctx context.Context, clients *kubernetes.Clientset, namespace string, i int) {
	selector := apifields.OneTermEqualSelector("metadata.name", fmt.Sprintf("watched-%d", i)).String()
	hour := int64(3600)
	watch, err := clients.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: selector, TimeoutSeconds: &hour})
	if err != nil {
		report("refused", failure(fields{"watch": i}, err))
		return
	}
	go func() {
		for event := range watch.ResultChan() {
			report("seen", fields{"watch": i, "type": event.Type})
		}
		if ctx.Err() == nil {
			report("interrupted", fields{"watch": i})
		}
	}()
}

func probe(ctx context.Context, clients *kubernetes.Clientset, namespace string) {
	timed := func(call string, do func() error) {
		begin := time.Now()
		err := do()
		report("probe", failure(fields{"call": call, "micros": time.Since(begin).Microseconds()}, err))
	}
	timed("get", func() error {
		_, err := clients.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err
	})
	leases := clients.CoordinationV1().Leases(namespace)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}
	timed("lease create", func() (err error) {
		lease, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
	timed("lease update", func() error {
		holder := "probe"
		lease.Spec.HolderIdentity = &holder
		_, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

// informers runs many reflectors, each on its own object, and reports what they see and what goes wrong.
func informers(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("informers", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "where the objects are")
	count := flags.Int("count", 100, "how many")
	_ = flags.Parse(args)
	_, clients, err := connect("informers")
	if err != nil {
		return err
	}
	begin := time.Now()
	var synced []cache.InformerSynced
	for i := range *count {
		name := fmt.Sprintf("informed-%d", i)
		informer := cache.NewSharedInformer(
			cache.NewListWatchFromClient(clients.CoreV1().RESTClient(), "configmaps", *namespace, apifields.OneTermEqualSelector("metadata.name", name)),
			&corev1.ConfigMap{}, 0)
		_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			report("watch_error", failure(fields{"name": name}, err))
		})
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { report("seen", fields{"name": name}) },
			UpdateFunc: func(any, any) { report("seen", fields{"name": name}) },
		})
		go informer.RunWithContext(ctx)
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("the informers did not sync")
	}
	report("synced", fields{"count": *count, "micros": time.Since(begin).Microseconds()})
	<-ctx.Done()
	return nil
}
