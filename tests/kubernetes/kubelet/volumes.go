package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// makeVolumes makes a folder for each volume, with what belongs into it.
func (p *pod) makeVolumes() error {
	if err := os.MkdirAll(p.folder, 0o755); err != nil {
		return err
	}
	for _, volume := range p.object.Spec.Volumes {
		folder := p.volume(volume.Name)
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		// Past the umask, as kubelet makes them.
		if err := os.Chmod(folder, 0o777); err != nil {
			return err
		}
		var err error
		switch {
		case volume.EmptyDir != nil:
		case volume.ConfigMap != nil:
			err = p.writeConfigMap(folder, volume.ConfigMap.Name, volume.ConfigMap.Items)
		case volume.Projected != nil:
			err = p.writeProjected(folder, volume.Projected.Sources)
		default:
			err = fmt.Errorf("volume %s is of a kind that there is not here", volume.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pod) volume(name string) string { return filepath.Join(p.folder, "volumes", name) }

func (p *pod) writeConfigMap(folder, name string, items []corev1.KeyToPath) error {
	var found *corev1.ConfigMap
	// As kubelet does: it may come after the pod.
	for {
		var err error
		if found, err = p.node.clients.CoreV1().ConfigMaps(p.object.Namespace).Get(p.ending, name, metav1.GetOptions{}); err == nil {
			break
		}
		report("waits", p.about("", map[string]any{"for": err.Error()}))
		select {
		case <-p.ending.Done():
			return p.ending.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	if items == nil {
		for key := range found.Data {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		if err := write(folder, item.Path, found.Data[item.Key]); err != nil {
			return err
		}
	}
	return nil
}

func (p *pod) writeProjected(folder string, sources []corev1.VolumeProjection) error {
	for _, source := range sources {
		switch {
		case source.ServiceAccountToken != nil:
			asked := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: source.ServiceAccountToken.ExpirationSeconds,
				BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.object.Name, UID: p.object.UID},
			}}
			accounts := p.node.clients.CoreV1().ServiceAccounts(p.object.Namespace)
			answer, err := accounts.CreateToken(context.Background(), p.object.Spec.ServiceAccountName, asked, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if err := write(folder, source.ServiceAccountToken.Path, answer.Status.Token); err != nil {
				return err
			}
		case source.ConfigMap != nil:
			if err := p.writeConfigMap(folder, source.ConfigMap.Name, source.ConfigMap.Items); err != nil {
				return err
			}
		case source.DownwardAPI != nil:
			for _, item := range source.DownwardAPI.Items {
				if err := write(folder, item.Path, p.field(item.FieldRef)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// field is what the downward API says.
func (p *pod) field(of *corev1.ObjectFieldSelector) string {
	switch of.FieldPath {
	case "metadata.name":
		return p.object.Name
	case "metadata.namespace":
		return p.object.Namespace
	}
	return ""
}

func write(folder, path, text string) error {
	file := filepath.Join(folder, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
