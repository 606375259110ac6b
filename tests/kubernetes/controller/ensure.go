package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// writes are three ways to make an object after a read that did not find it.
var writes = map[string]func(context.Context, *kubernetes.Clientset, string) error{
	"created": func(ctx context.Context, clients *kubernetes.Clientset, namespace string) error {
		maps := clients.CoreV1().ConfigMaps(namespace)
		if _, err := maps.Get(ctx, "created", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "created"}}, metav1.CreateOptions{})
		return err
	},
	// Server-side apply, after reads of the object and of two of its subresources.
	"applied": func(ctx context.Context, clients *kubernetes.Clientset, namespace string) error {
		deployments := clients.AppsV1().Deployments(namespace)
		if _, err := deployments.Get(ctx, "applied", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		if _, err := deployments.GetScale(ctx, "applied", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		status := clients.AppsV1().RESTClient().Get().Namespace(namespace).Resource("deployments").Name("applied").SubResource("status")
		if err := status.Do(ctx).Error(); !apierrors.IsNotFound(err) {
			return err
		}
		const wanted = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"applied"},"spec":{"replicas":0,` +
			`"selector":{"matchLabels":{"app":"applied"}},"template":{"metadata":{"labels":{"app":"applied"}},` +
			`"spec":{"containers":[{"name":"c","image":"none"}]}}}}`
		_, err := deployments.Patch(ctx, "applied", types.ApplyPatchType, []byte(wanted), metav1.PatchOptions{FieldManager: "ensure"})
		return err
	},
	// A PUT makes an object of this kind if there is none.
	"put": func(ctx context.Context, clients *kubernetes.Clientset, namespace string) error {
		ranges := clients.CoreV1().LimitRanges(namespace)
		if _, err := ranges.Get(ctx, "put", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		_, err := ranges.Update(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "put"}}, metav1.UpdateOptions{})
		return err
	},
}

// ensure makes one object as a controller without a cache does: it reads, writes after a 404, and
// starts again at once after an error.
func ensure(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("ensure", flag.ExitOnError)
	namespace := flags.String("namespace", "default", "where the object is to be")
	how := flags.String("how", "created", "created, applied or put, which is also its name")
	_ = flags.Parse(args)
	write := writes[*how]
	if write == nil {
		return fmt.Errorf("-how: expected created, applied or put, got %q", *how)
	}
	_, clients, err := connect("ensure")
	if err != nil {
		return err
	}
	begin := time.Now()
	for tries := 1; ctx.Err() == nil; tries++ {
		if err = write(ctx, clients, *namespace); err == nil {
			report("made", fields{"tries": tries, "micros": time.Since(begin).Microseconds()})
			return nil
		}
	}
	return err
}
