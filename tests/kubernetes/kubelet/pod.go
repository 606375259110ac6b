package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod is one that runs here.
type pod struct {
	node    *node
	object  *corev1.Pod
	folder  string
	sandbox *exec.Cmd

	ending context.Context
	end    context.CancelFunc

	turn     sync.Mutex
	sidecars []*running
	others   []*running
}

// running is a container's process.
type running struct {
	name    string
	command *exec.Cmd // its shim
	pid     int
	env     []string
	log     string
	done    chan struct{}
	status  corev1.ContainerStatus
}

func newPod(n *node, object *corev1.Pod) *pod {
	p := &pod{node: n, object: object, folder: filepath.Join(n.folder, string(object.UID))}
	p.ending, p.end = context.WithCancel(context.Background())
	return p
}

// live is a pod's life, from its volumes to its deletion.
func (p *pod) live() {
	if err := p.start(); err != nil && p.ending.Err() == nil {
		report("failed", p.about("", map[string]any{"error": err.Error()}))
	}
	<-p.ending.Done()
	p.stop(p.others)
	for i := len(p.sidecars) - 1; i >= 0; i-- {
		p.stop(p.sidecars[i : i+1])
	}
	if p.sandbox != nil {
		_ = p.sandbox.Process.Kill()
		_ = p.sandbox.Wait()
	}
	_ = os.RemoveAll(p.folder)
	now := int64(0)
	_ = p.node.clients.CoreV1().Pods(p.object.Namespace).Delete(context.Background(), p.object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.object.UID},
	})
	report("gone", p.about("", nil))
}

func (p *pod) start() error {
	if err := p.makeVolumes(); err != nil {
		return err
	}
	if err := p.startSandbox(); err != nil {
		return err
	}
	for i := range p.object.Spec.InitContainers {
		spec := &p.object.Spec.InitContainers[i]
		isSidecar := spec.RestartPolicy != nil && *spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
		c, err := p.run(spec, isSidecar)
		if err != nil {
			return err
		}
		if isSidecar {
			err = p.waitStarted(c, spec.StartupProbe)
		} else {
			<-c.done
			if !c.command.ProcessState.Success() {
				err = fmt.Errorf("init container %s: %s", c.name, c.command.ProcessState)
			}
		}
		if err != nil {
			return err
		}
	}
	for i := range p.object.Spec.Containers {
		c, err := p.run(&p.object.Spec.Containers[i], false)
		if err != nil {
			return err
		}
		p.started(c)
	}
	return nil
}

// run starts a container's process.
func (p *pod) run(spec *corev1.Container, isSidecar bool) (*running, error) {
	if p.ending.Err() != nil {
		return nil, p.ending.Err()
	}
	plan, err := p.plan(spec)
	if err != nil {
		return nil, err
	}
	c := &running{name: spec.Name, env: plan.Env, log: filepath.Join(p.folder, spec.Name+".log"), done: make(chan struct{})}
	output, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	file := filepath.Join(p.folder, spec.Name+".json")
	text, _ := json.Marshal(plan)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	self, _ := os.Executable()
	c.command = p.inside(p.sandbox.Process.Pid, []string{"--user", "--net"}, self, "shim", strconv.Itoa(os.Getpid()), file)
	c.command.Stdout, c.command.Stderr = output, output
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	if c.pid, err = pidOf(file + ".pid"); err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Name, err)
	}
	now := metav1.Now()
	c.status = corev1.ContainerStatus{
		Name: spec.Name, Image: spec.Image, ImageID: spec.Image, ContainerID: fmt.Sprintf("process://%d", c.pid),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}
	p.turn.Lock()
	if isSidecar {
		p.sidecars = append(p.sidecars, c)
	} else {
		p.others = append(p.others, c)
	}
	p.turn.Unlock()
	report("started", p.about(spec.Name, map[string]any{"pid": c.pid}))
	p.tell()
	go func() {
		_ = c.command.Wait()
		report("ended", p.about(spec.Name, map[string]any{"code": c.command.ProcessState.ExitCode()}))
		close(c.done)
		p.turn.Lock()
		c.status.Ready = false
		c.status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(c.command.ProcessState.ExitCode()), StartedAt: now, FinishedAt: metav1.Now(),
		}}
		p.turn.Unlock()
		p.tell()
	}()
	return c, nil
}

// pidOf waits for what a shim says.
func pidOf(file string) (int, error) {
	for range 3000 {
		if text, err := os.ReadFile(file); err == nil {
			return strconv.Atoi(string(text))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, fmt.Errorf("was not started within 30 s")
}

// waitStarted asks the startup probe until it passes, as often as it says.
func (p *pod) waitStarted(c *running, probe *corev1.Probe) error {
	if probe == nil || probe.Exec == nil {
		p.started(c)
		return nil
	}
	for range max(probe.FailureThreshold, 1) {
		command := enter(c, probe.Exec.Command)
		said, err := command.CombinedOutput()
		if err == nil {
			p.started(c)
			return nil
		}
		report("probe failed", p.about(c.name, map[string]any{"said": string(said), "error": err.Error()}))
		select {
		case <-p.ending.Done():
			return p.ending.Err()
		case <-c.done:
			return fmt.Errorf("%s ended before it was up", c.name)
		case <-time.After(time.Duration(max(probe.PeriodSeconds, 1)) * time.Second):
		}
	}
	return fmt.Errorf("the startup probe of %s did not pass", c.name)
}

func (p *pod) started(c *running) {
	yes := true
	p.turn.Lock()
	c.status.Started, c.status.Ready = &yes, true
	p.turn.Unlock()
	report("up", p.about(c.name, nil))
	p.tell()
}

// stop asks containers to end, and ends those that do not within the pod's time.
func (p *pod) stop(these []*running) {
	for _, c := range these {
		report("asked to stop", p.about(c.name, nil))
		_ = c.command.Process.Signal(syscall.SIGTERM)
	}
	grace := 30 * time.Second
	if seconds := p.object.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	late := time.After(grace)
	for _, c := range these {
		select {
		case <-c.done:
		case <-late:
			_ = c.command.Process.Kill()
			<-c.done
		}
	}
}

// tell writes the pod's status to the API server.
func (p *pod) tell() {
	p.turn.Lock()
	status := corev1.PodStatus{Phase: corev1.PodPending, PodIP: "10.1.0.1", HostIP: "127.0.0.1", StartTime: &p.object.CreationTimestamp}
	ready := len(p.others) >= len(p.object.Spec.Containers)
	for _, c := range p.sidecars {
		status.InitContainerStatuses = append(status.InitContainerStatuses, c.status)
		ready = ready && c.status.Ready
	}
	for _, c := range p.others {
		if p.isInit(c.name) {
			status.InitContainerStatuses = append(status.InitContainerStatuses, c.status)
			continue
		}
		status.ContainerStatuses = append(status.ContainerStatuses, c.status)
		ready = ready && c.status.Ready
		status.Phase = corev1.PodRunning
	}
	p.turn.Unlock()
	state := corev1.ConditionFalse
	if ready {
		state = corev1.ConditionTrue
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: state, LastTransitionTime: metav1.Now()})
	}
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	text, _ := json.Marshal(map[string]any{"status": status})
	_, err := p.node.clients.CoreV1().Pods(p.object.Namespace).Patch(context.Background(), p.object.Name, types.MergePatchType, text, metav1.PatchOptions{}, "status")
	if err != nil && p.ending.Err() == nil {
		log.Printf("status of %s: %v", p.object.Name, err)
	}
}

func (p *pod) isInit(name string) bool {
	for _, spec := range p.object.Spec.InitContainers {
		if spec.Name == name {
			return true
		}
	}
	return false
}

func (p *pod) find(container string) *running {
	p.turn.Lock()
	defer p.turn.Unlock()
	for _, c := range append(append([]*running{}, p.sidecars...), p.others...) {
		if c.name == container {
			return c
		}
	}
	return nil
}

func (p *pod) about(container string, more map[string]any) map[string]any {
	all := map[string]any{"namespace": p.object.Namespace, "pod": p.object.Name}
	if container != "" {
		all["container"] = container
	}
	for name, value := range more {
		all[name] = value
	}
	return all
}
