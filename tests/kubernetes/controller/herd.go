package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// herd sends many calls at a time: each worker reads and writes one object of its own, in turns. A write
// carries the version it read, so a write that is applied twice shows as a conflict, and the counter in the
// object tells at the end how many were applied.
func herd(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("herd", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "where the objects are")
	count := flags.Int64("count", 1000, "calls in all")
	concurrency := flags.Int("concurrency", 100, "calls at a time")
	reads := flags.Bool("reads", false, "only read, all the same object, which need not exist")
	_ = flags.Parse(args)
	_, clients, err := connect("herd")
	if err != nil {
		return err
	}
	maps := clients.CoreV1().ConfigMaps(*namespace)
	h := &cattle{maps: maps, reads: *reads}
	h.left.Store(*count)
	report("started", nil)
	begin := time.Now()
	var all sync.WaitGroup
	for i := range *concurrency {
		all.Go(func() { h.work(ctx, fmt.Sprintf("herd-%d", i)) })
	}
	all.Wait()
	report("done", fields{
		"gets": h.gets.Load(), "puts": h.puts.Load(), "errors": h.errors.Load(),
		"micros": time.Since(begin).Microseconds(),
	})
	return nil
}

type cattle struct {
	maps                     typedv1.ConfigMapInterface
	reads                    bool
	left, gets, puts, errors atomic.Int64
}

func (h *cattle) work(ctx context.Context, name string) {
	if h.reads {
		for h.left.Add(-1) >= 0 && ctx.Err() == nil {
			h.get(ctx, "herd-0")
		}
		return
	}
	object := &corev1.ConfigMap{Data: map[string]string{"counter": "0"}}
	object.Name = name
	if _, err := h.maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		h.failed("create", name, err)
		return
	}
	applied := 0
	for h.left.Add(-1) >= 0 && ctx.Err() == nil {
		object = h.get(ctx, name)
		if object == nil || h.left.Add(-1) < 0 {
			continue
		}
		object.Data["counter"] = strconv.Itoa(applied + 1)
		if _, err := h.maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
			h.failed("put", name, err)
			continue
		}
		h.puts.Add(1)
		applied++
	}
	object = h.get(ctx, name)
	if object == nil || object.Data["counter"] != strconv.Itoa(applied) {
		report("miscounted", fields{"name": name, "applied": applied, "object": object})
	}
}

func (h *cattle) get(ctx context.Context, name string) *corev1.ConfigMap {
	begin := time.Now()
	object, err := h.maps.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !(h.reads && apierrors.IsNotFound(err)) {
		h.failed("get", name, err)
		return nil
	}
	h.gets.Add(1)
	if h.reads {
		report("get", fields{"micros": time.Since(begin).Microseconds()})
	}
	return object
}

func (h *cattle) failed(verb, name string, err error) {
	h.errors.Add(1)
	report("failed", failure(fields{"verb": verb, "name": name}, err))
}
