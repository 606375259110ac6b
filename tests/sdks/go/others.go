package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/digitalocean/godo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// An upload's size.
const large = 5 << 20

// netHTTP is Go's own client as it is, on which nearly every controller's is built.
func netHTTP(base string) map[string]func() error {
	call := func(method, path string, body []byte) func() error {
		return func() error {
			request, err := http.NewRequest(method, base+path, bytes.NewReader(body))
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if _, err := io.ReadAll(response.Body); err != nil {
				return err
			}
			if response.StatusCode >= 400 {
				return errors.New(response.Status)
			}
			return nil
		}
	}
	return map[string]func() error{
		"read":   call("GET", "/things", nil),
		"write":  call("POST", "/things", []byte("{}")),
		"upload": call("PUT", "/things/1", make([]byte, large)),
	}
}

// azure has the pipeline of Azure's SDKs, with the transport that it has by default.
func azure(base string) map[string]func() error {
	options := &policy.ClientOptions{Retry: policy.RetryOptions{MaxRetries: 2}}
	pipeline := runtime.NewPipeline("tests", "v1", runtime.PipelineOptions{}, options)
	call := func(method, path string, body []byte) func() error {
		return func() error {
			request, err := runtime.NewRequest(context.Background(), method, base+path)
			if err != nil {
				return err
			}
			if body != nil {
				reader := streaming.NopCloser(bytes.NewReader(body))
				if err := request.SetBody(reader, "application/json"); err != nil {
					return err
				}
			}
			response, err := pipeline.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode >= 400 {
				return runtime.NewResponseError(response)
			}
			return nil
		}
	}
	group := "/subscriptions/s/resourcegroups/g?api-version=2021-04-01"
	return map[string]func() error{
		"azure":        call("GET", group, nil),
		"azure_write":  call("PUT", group, []byte("{}")),
		"azure_upload": call("PUT", group, make([]byte, large)),
	}
}

func digitalOcean(base string) map[string]func() error {
	client := godo.NewFromToken("token")
	client.BaseURL, _ = url.Parse(base + "/")
	return map[string]func() error{"droplets": func() error {
		_, _, err := client.Droplets.List(context.Background(), nil)
		return err
	}}
}

// raw passes messages as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (raw) Name() string                       { return "raw" }

func grpcGo(base string) map[string]func() error {
	target := strings.TrimPrefix(base, "https://")
	if !strings.Contains(target, ":") {
		target += ":443" // it takes no other form through a proxy, as Google's own targets have it
	}
	channel, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(nil)))
	call := func(name string, size int) func() error {
		return func() error {
			if err != nil {
				return fmt.Errorf("no channel: %w", err)
			}
			in, out := make([]byte, size), []byte{}
			return channel.Invoke(context.Background(), "/p.Service/"+name, &in, &out, grpc.ForceCodec(raw{}))
		}
	}
	return map[string]func() error{"Get": call("Get", 0), "Create": call("Create", 10), "Upload": call("Upload", large)}
}
