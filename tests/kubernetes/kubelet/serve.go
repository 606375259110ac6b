package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Kubelet's own times.
const (
	idle     = 4 * time.Hour
	creation = 30 * time.Second
)

// serving is where the API server finds exec and logs. It admits only clients with a certificate of the tests' CA, because it runs any command.
type serving struct{ listen, cert, key, ca *string }

func serveFlags() serving {
	return serving{
		listen: flag.String("listen", "127.0.0.1:0", "address for the API server"),
		cert:   flag.String("cert", "", "its certificate"),
		key:    flag.String("key", "", "and key"),
		ca:     flag.String("ca", "", "who signs the API server's client certificate"),
	}
}

func (s serving) start(n *node) int {
	pem, err := os.ReadFile(*s.ca)
	if err != nil {
		log.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(pem)
	listener, err := net.Listen("tcp", *s.listen)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", n.exec)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.logs)
	server := http.Server{Handler: mux, TLSConfig: &tls.Config{
		ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs:  clients,
		NextProtos: []string{"http/1.1"},
	}}
	go func() { log.Fatal(server.ServeTLS(listener, *s.cert, *s.key)) }()
	return listener.Addr().(*net.TCPAddr).Port
}

func (n *node) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := n.find(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"))
	if c == nil {
		http.Error(w, "no such container runs", http.StatusNotFound)
		return
	}
	remotecommand.ServeExec(w, r, executor{c}, "", "", "", r.URL.Query()["command"], options, idle, creation, remotecommand.SupportedStreamingProtocols)
}

func (n *node) logs(w http.ResponseWriter, r *http.Request) {
	c := n.find(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"))
	if c == nil {
		http.Error(w, "no such container runs", http.StatusNotFound)
		return
	}
	file, err := os.Open(c.log)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	_, _ = io.Copy(w, file)
}

type executor struct{ container *running }

// ExecInContainer runs the command there and gives its exit code, as a runtime does. It has no input: nothing of the tests' needs one.
func (e executor) ExecInContainer(_ context.Context, _, _, _ string, command []string, _ io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	run := enter(e.container, command)
	run.Stdout, run.Stderr = out, err
	failed := run.Run()
	var exit *exec.ExitError
	if errors.As(failed, &exit) {
		return utilexec.CodeExitError{Err: failed, Code: exit.ExitCode()}
	}
	return failed
}
