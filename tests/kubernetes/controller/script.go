package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// script does what the clients in every language do, as a pod does that knows nothing but its own service account.
// Its report is plain lines, the same in every language.
func script(ctx context.Context, args []string) error {
	namespace, name := args[0], args[1]
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := clients.CoreV1().ConfigMaps(namespace)
	mine := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	list, err := maps.List(ctx, mine)
	if err != nil {
		return err
	}
	fmt.Println("list", len(list.Items))
	seen, err := maps.Watch(ctx, metav1.ListOptions{FieldSelector: mine.FieldSelector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer seen.Stop()
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "one"}}
	made, err := maps.Create(ctx, one, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	fmt.Println("created", made.Data["value"])
	made, err = maps.Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"value":"two"}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	fmt.Println("patched", made.Data["value"])
	if list, err = maps.List(ctx, mine); err != nil {
		return err
	}
	fmt.Println("list", len(list.Items))
	_, err = maps.Create(ctx, one, metav1.CreateOptions{})
	fmt.Println("create again:", reason(err))
	_, err = maps.Get(ctx, name+"-absent", metav1.GetOptions{})
	fmt.Println("get absent:", reason(err))
	if err = maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	fmt.Println("deleted")
	fmt.Println("watch", events(seen))
	if list, err = maps.List(ctx, mine); err != nil {
		return err
	}
	fmt.Println("list", len(list.Items))
	return nil
}

// events of a watch, up to the object's end.
func events(seen watch.Interface) string {
	var all []string
	for event := range seen.ResultChan() {
		object, _ := event.Object.(*corev1.ConfigMap)
		if object == nil {
			return fmt.Sprint(event)
		}
		all = append(all, fmt.Sprint(event.Type, " ", object.Data["value"]))
		if event.Type == watch.Deleted {
			break
		}
	}
	return strings.Join(all, ", ")
}

func reason(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Sprint(err)
	}
	return fmt.Sprint(status.Status().Code, " ", status.Status().Reason)
}
