package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// refuse serves HTTP/1.1 without TLS. It answers every request that has a body with a 413, from the
// head alone, and every other with a 200.
func refuse(ctx context.Context, _ []string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	report("listening", fields{"port": listener.Addr().(*net.TCPAddr).Port})
	server := &http.Server{Handler: http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if request.ContentLength != 0 {
			http.Error(answer, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		fmt.Fprintln(answer, "found")
	})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// upload sends bodies that the server refuses, by HTTP/1.1, and makes a second call after each. For
// each SIZE:RUNS it prints the size, the runs, the uploads and the second calls that were answered,
// and the first error. The clients in other languages print the same.
func upload(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("upload", flag.ExitOnError)
	typed := flags.Bool("typed", false, "with client-go instead of net/http")
	_ = flags.Parse(args)
	base := flags.Arg(0)
	connect := plainCalls
	if *typed {
		connect = typedCalls
	}
	send, next, err := connect(base)
	if err != nil {
		return err
	}
	for _, what := range flags.Args()[1:] {
		var size, runs, answered, followed int
		if _, err := fmt.Sscanf(what, "%d:%d", &size, &runs); err != nil {
			return err
		}
		first := error(nil)
		body := strings.Repeat("x", size)
		for range runs {
			if err := send(body); err == nil {
				answered++
			} else if first == nil {
				first = err
			}
			if err := next(); err == nil {
				followed++
			} else if first == nil {
				first = fmt.Errorf("next: %w", err)
			}
		}
		fmt.Println(size, runs, answered, followed, first)
	}
	return nil
}

func plainCalls(base string) (func(string) error, func() error, error) {
	// An empty map keeps net/http from HTTP/2.
	transport := &http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	if pem, err := os.ReadFile(os.Getenv("CA_FILE")); err == nil {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	client := &http.Client{Transport: transport}
	call := func(method, path string, body io.Reader) error {
		request, err := http.NewRequest(method, base+path, body)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer wrong")
		request.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	send := func(body string) error {
		return call("POST", "/api/v1/namespaces/default/configmaps", bytes.NewReader([]byte(body)))
	}
	return send, func() error { return call("GET", "/version", nil) }, nil
}

func typedCalls(base string) (func(string) error, func() error, error) {
	config := &rest.Config{Host: base, BearerToken: "wrong", QPS: -1}
	if strings.HasPrefix(base, "https:") {
		config.TLSClientConfig = rest.TLSClientConfig{CAFile: os.Getenv("CA_FILE"), NextProtos: []string{"http/1.1"}}
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	maps := clients.CoreV1().ConfigMaps("default")
	answer := func(err error) error {
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			return nil
		}
		return fmt.Errorf("expected a refusal, got %v", err)
	}
	send := func(body string) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "upload"}, Data: map[string]string{"body": body}}
		_, err := maps.Create(context.Background(), object, metav1.CreateOptions{})
		return answer(err)
	}
	next := func() error {
		_, err := maps.Get(context.Background(), "absent", metav1.GetOptions{})
		return answer(err)
	}
	return send, next, nil
}
