package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// The address at which pods find the API server.
const service = "10.0.0.1"

// The file that a container's first process closes when its root is made: the first that it inherits.
const told = 3

// The machine's folders that a container needs if its program is linked with the machine's libraries.
var machine = []string{"/usr", "/lib", "/lib64", "/dev/null", "/dev/urandom", "/etc/ssl"}

// plan has the instructions for the process that becomes a container.
type plan struct {
	Root     string // an empty folder
	Program  string // of the image
	Command  []string
	Env      []string
	Folder   string // to start in
	Mounts   []mounted
	ReadOnly bool
	Slow     time.Duration
}

type mounted struct {
	From, To string
	ReadOnly bool
}

// plan resolves a container's image, environment and mounts.
func (p *pod) plan(spec *corev1.Container) (*plan, error) {
	program, known := p.node.images[spec.Image]
	if !known {
		return nil, fmt.Errorf("there is no image %s", spec.Image)
	}
	made := &plan{Root: filepath.Join(p.folder, "root-"+spec.Name), Program: program, Folder: spec.WorkingDir, Slow: p.node.slow[spec.Image]}
	made.Command = spec.Command
	if len(made.Command) == 0 {
		name, _, _ := strings.Cut(filepath.Base(program), "-")
		made.Command = []string{"/" + name}
	}
	made.Command = append(append([]string{}, made.Command...), spec.Args...)
	// As the image and kubelet have it; a later one wins.
	env := map[string]string{"PATH": "/", "HOSTNAME": p.object.Name, "KUBERNETES_SERVICE_HOST": service, "KUBERNETES_SERVICE_PORT": "443"}
	for _, variable := range spec.Env {
		env[variable.Name] = variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
			env[variable.Name] = p.field(variable.ValueFrom.FieldRef)
		}
	}
	for name, value := range env {
		made.Env = append(made.Env, name+"="+value)
	}
	for _, mount := range spec.VolumeMounts {
		made.Mounts = append(made.Mounts, mounted{From: filepath.Join(p.volume(mount.Name), mount.SubPath), To: mount.MountPath, ReadOnly: mount.ReadOnly})
	}
	if context := spec.SecurityContext; context != nil && context.ReadOnlyRootFilesystem != nil {
		made.ReadOnly = *context.ReadOnlyRootFilesystem
	}
	return made, os.MkdirAll(made.Root, 0o755)
}

// startSandbox starts the process that holds the pod's network, and passes on what the pod sends to the API server's address.
func (p *pod) startSandbox() error {
	socket := filepath.Join(p.folder, "api")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	context.AfterFunc(p.ending, func() { _ = listener.Close() })
	go relay(listener, "tcp", p.node.api)
	self, _ := os.Executable()
	p.sandbox = exec.Command(self, "sandbox", strconv.Itoa(os.Getpid()), socket)
	p.sandbox.Stderr = os.Stderr
	p.sandbox.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	said, err := p.sandbox.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.sandbox.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		return fmt.Errorf("the pod's network: %w", err)
	}
	return nil
}

// inside runs a program in namespaces of a process.
func (p *pod) inside(pid int, which []string, program ...string) *exec.Cmd {
	args := append([]string{"--preserve-credentials", "--target", strconv.Itoa(pid)}, which...)
	return exec.Command("nsenter", append(append(args, "--"), program...)...)
}

// enter runs a command in a container that runs.
func enter(c *running, command []string) *exec.Cmd {
	args := []string{"--preserve-credentials", "--target", strconv.Itoa(c.pid), "--user", "--net", "--mount", "--pid", "--root", "--wd", "--"}
	run := exec.Command("nsenter", append(args, command...)...)
	run.Env = c.env
	return run
}

// endWith lets this process end when the one that started it ends, or now if it has ended since.
func endWith(parent string) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if strconv.Itoa(os.Getppid()) != parent {
		return fmt.Errorf("process %s, which started this one, has ended", parent)
	}
	return nil
}

// sandbox is the pod's network: a loopback of its own, and on it the API server's address.
func sandbox(parent, socket string) error {
	if err := endWith(parent); err != nil {
		return err
	}
	for _, address := range []string{"127.0.0.1", service} {
		if err := addAddress(address, address == service); err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
	}
	listener, err := net.Listen("tcp", service+":443")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	relay(listener, "unix", socket)
	return nil
}

// addAddress brings loopback up, or gives it one more address.
func addAddress(address string, more bool) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	name := "lo"
	if more {
		name = "lo:1"
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if more {
		if err := request.SetInet4Addr(net.ParseIP(address).To4()); err != nil {
			return err
		}
		return unix.IoctlIfreq(socket, unix.SIOCSIFADDR, request)
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// relay joins each connection of a listener with one to another address; each side's end is passed on by itself.
func relay(listener net.Listener, network, address string) {
	type half interface{ CloseWrite() error }
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := net.Dial(network, address)
			if err != nil {
				return
			}
			defer to.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(to, from)
				_ = to.(half).CloseWrite()
			}()
			_, _ = io.Copy(from, to)
			_ = from.(half).CloseWrite()
			<-done
		}()
	}
}

// shim starts a container's first process, says under which number when its root is made, passes signals on, and ends as it ends.
func shim(parent, file string) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	self, _ := os.Executable()
	child := exec.Command(self, "container", file)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{writer}
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	// The signal comes when this thread ends, not when the process does.
	runtime.LockOSThread()
	if err := endWith(parent); err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	_ = writer.Close()
	go func() {
		for s := range signals {
			_ = child.Process.Signal(s)
		}
	}()
	// Until the other end is closed.
	_, _ = io.Copy(io.Discard, reader)
	pid := strconv.Itoa(child.Process.Pid)
	if err := os.WriteFile(file+".new", []byte(pid), 0o644); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file+".pid"); err != nil {
		return err
	}
	_ = child.Wait()
	if code := child.ProcessState.ExitCode(); code >= 0 {
		os.Exit(code)
	}
	return fmt.Errorf("%s", child.ProcessState)
}

// container makes the root folder that the image would be, and becomes the container's program.
func container(file string) error {
	// The program takes the place of the thread that starts it, and with it the wish to end as the shim ends: another thread has none.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var made plan
	if err := json.Unmarshal(text, &made); err != nil {
		return err
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", made.Root, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, path := range machine {
		if link, err := os.Readlink(path); err == nil {
			_ = os.Symlink(link, filepath.Join(made.Root, path))
		} else if err := bind(made.Root, mounted{From: path, To: path}); err != nil {
			return err
		}
	}
	proc := filepath.Join(made.Root, "proc")
	if err := os.MkdirAll(proc, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	name, _, _ := strings.Cut(filepath.Base(made.Program), "-")
	mounts := append([]mounted{{From: made.Program, To: "/" + name, ReadOnly: true}}, made.Mounts...)
	for _, mount := range mounts {
		if err := bind(made.Root, mount); err != nil {
			return err
		}
	}
	if made.ReadOnly {
		if err := unix.Mount("", made.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("read-only root: %w", err)
		}
	}
	if err := unix.Chroot(made.Root); err != nil {
		return err
	}
	if err := unix.Chdir("/" + made.Folder); err != nil {
		return err
	}
	// From here on the container counts as started, if there is still a shim that reads it.
	if _, err := unix.Write(told, []byte{0}); err != nil {
		return err
	}
	_ = unix.Close(told)
	time.Sleep(made.Slow)
	if !strings.Contains(made.Command[0], "/") {
		made.Command[0] = "/" + made.Command[0]
	}
	return fmt.Errorf("%s: %w", made.Command[0], unix.Exec(made.Command[0], made.Command, made.Env))
}

// bind lets a file or folder be seen at a place of the root.
func bind(root string, mount mounted) error {
	info, err := os.Stat(mount.From)
	if os.IsNotExist(err) && strings.HasPrefix(mount.From, "/lib") {
		return nil // not every machine has both
	}
	if err != nil {
		return err
	}
	to := filepath.Join(root, mount.To)
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		err = os.WriteFile(to, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(mount.From, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("%s at %s: %w", mount.From, mount.To, err)
	}
	if !mount.ReadOnly {
		return nil
	}
	// A flag that the machine sets on that file system cannot be left out here.
	var is unix.Statfs_t
	if err := unix.Statfs(to, &is); err != nil {
		return err
	}
	kept := uintptr(is.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	return unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|kept, "")
}
