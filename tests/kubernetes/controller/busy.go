package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
)

// busy is a controller whose ConfigMaps object-0, object-1, ... change one after the other, over and over. One write
// answers a change. A write that fails is tried again by client-go's exponential backoff.
func busy(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("busy", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "where the objects are")
	objects := flags.Int("objects", 100, "how many there are")
	workers := flags.Int("workers", 5, "writes at a time")
	every := flags.Duration("every", time.Second, "the time between two changes")
	_ = flags.Parse(args)
	_, clients, err := connect("busy")
	if err != nil {
		return err
	}
	maps := clients.CoreV1().ConfigMaps(*namespace)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 1000*time.Second))
	for range *workers {
		go func() {
			for name, down := queue.Get(); !down; name, down = queue.Get() {
				object := &corev1.ConfigMap{Data: map[string]string{"at": time.Now().String()}}
				object.Name = name
				if _, err := maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
					queue.AddRateLimited(name)
				} else {
					queue.Forget(name)
				}
				queue.Done(name)
			}
		}()
	}
	report("started", nil)
	ticks := time.NewTicker(*every)
	for i := 0; ctx.Err() == nil; i++ {
		queue.Add(fmt.Sprintf("object-%d", i%*objects))
		<-ticks.C
	}
	queue.ShutDown()
	return nil
}
