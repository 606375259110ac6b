// Command node is where the API server finds the kubelet of the tests' pods. KWOK makes the pods run; this serves their streams, with
// the code that kubelet's runtimes serve them with (k8s.io/cri-streaming), because KWOK's exec loses exit codes and its attach has no input.
//
// A container is a folder of this machine: exec runs the command there, attach is `cat`, a port is one of 127.0.0.1, and the log is
// lines that come as time passes. It admits only clients with a certificate of the tests' CA, because it runs any command.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Kubelet's own times.
const (
	idle     = 4 * time.Hour
	creation = 30 * time.Second
)

// Lines of a log, and what lies between them when it is followed.
const (
	lines   = 20
	between = 100 * time.Millisecond
)

func main() {
	listen := flag.String("listen", "", "address")
	cert := flag.String("cert", "", "its certificate")
	key := flag.String("key", "", "and key")
	ca := flag.String("ca", "", "who signs the API server's client certificate")
	flag.Parse()
	pem, err := os.ReadFile(*ca)
	if err != nil {
		log.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(pem)
	server := http.Server{
		Addr:    *listen,
		Handler: routes(),
		TLSConfig: &tls.Config{
			ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs:  clients,
			NextProtos: []string{"http/1.1"},
		},
	}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, pod{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"],
			options, idle, creation, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeAttach(w, r, pod{}, r.PathValue("pod"), "", r.PathValue("container"),
			options, idle, creation, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, pod{}, r.PathValue("pod"), "", options, idle, creation, portforward.SupportedProtocols)
	})
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", logs)
	return mux
}

// logs writes each line when its time has come, or all of them at once.
func logs(w http.ResponseWriter, r *http.Request) {
	follow := r.URL.Query().Get("follow") == "true"
	w.Header().Set("Transfer-Encoding", "chunked")
	for line := range lines {
		fmt.Fprintf(w, "line %d\n", line)
		if !follow {
			continue
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(between):
		}
	}
}

// pod is every pod of the node.
type pod struct{}

// ExecInContainer runs the command and gives its exit code, as a runtime does.
func (pod) ExecInContainer(ctx context.Context, _, _, _ string, cmd []string, in io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return run(exec.CommandContext(ctx, cmd[0], cmd[1:]...), in, out, err)
}

// AttachContainer joins a process that gives back what it is given, and says on both of its outputs that it is there.
func (pod) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	return run(exec.CommandContext(ctx, "sh", "-c", "echo out; echo err >&2; exec cat"), in, out, err)
}

func run(command *exec.Cmd, in io.Reader, out, errOut io.WriteCloser) error {
	command.Stdout, command.Stderr = writer(out), writer(errOut)
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	// Not command.Stdin: Wait would wait for the client's end of it, and a command may end before.
	go func() {
		defer input.Close()
		if in != nil {
			_, _ = io.Copy(input, in)
		}
	}()
	err = command.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// writer keeps a missing stream from becoming a writer that is not nil.
func writer(stream io.WriteCloser) io.Writer {
	if stream == nil {
		return nil
	}
	return stream
}

// PortForward joins the stream with a port of this machine; each side's end is passed on by itself.
func (pod) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	peer, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer peer.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(stream, peer)
	}()
	_, _ = io.Copy(peer, stream)
	_ = peer.(*net.TCPConn).CloseWrite()
	<-done
	return nil
}
