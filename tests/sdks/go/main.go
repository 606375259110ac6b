// Makes calls with the Go SDKs: sdks SDK URL CALLS. One JSON object per call on stdout.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	awsv1 "github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/awserr"
	credentialsv1 "github.com/aws/aws-sdk-go/aws/credentials"
	"github.com/aws/aws-sdk-go/aws/session"
	dynamodbv1 "github.com/aws/aws-sdk-go/service/dynamodb"
	ec2v1 "github.com/aws/aws-sdk-go/service/ec2"
	stsv1 "github.com/aws/aws-sdk-go/service/sts"
	"github.com/aws/smithy-go"
	"github.com/google/go-github/v66/github"
)

const key, secret, region = "ASIAQNZGKIQY56JQ7WML", "secret", "eu-central-1"

type report struct {
	Call     string  `json:"call"`
	Ok       bool    `json:"ok"`
	Error    string  `json:"error"`
	Attempts *int    `json:"attempts"`
	Seconds  float64 `json:"seconds"`
}

func v2(base string) map[string]func() error {
	config := aws.Config{
		Region:           region,
		BaseEndpoint:     aws.String(base),
		Credentials:      credentials.NewStaticCredentialsProvider(key, secret, ""),
		RetryMaxAttempts: 3,
	}
	ctx := context.Background()
	s3Client := s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true })
	bucket, name := aws.String("b"), aws.String("k")
	return map[string]func() error{
		"ec2": func() error {
			_, err := ec2.NewFromConfig(config).DescribeInstances(ctx, nil)
			return err
		},
		"sts": func() error {
			_, err := sts.NewFromConfig(config).GetCallerIdentity(ctx, nil)
			return err
		},
		"dynamodb": func() error {
			_, err := dynamodb.NewFromConfig(config).ListTables(ctx, nil)
			return err
		},
		"eks": func() error {
			_, err := eks.NewFromConfig(config).DescribeCluster(ctx, &eks.DescribeClusterInput{Name: name})
			return err
		},
		"route53": func() error {
			_, err := route53.NewFromConfig(config).ListHostedZones(ctx, nil)
			return err
		},
		"s3": func() error {
			got, err := s3Client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: name})
			if err == nil {
				_, err = io.ReadAll(got.Body)
			}
			return err
		},
		"s3_put": func() error {
			body := bytes.NewReader(bytes.Repeat([]byte("x"), 100_000))
			_, err := s3Client.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: name, Body: body})
			return err
		},
		"s3_head": func() error {
			_, err := s3Client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: name})
			return err
		},
	}
}

func v1(base string) map[string]func() error {
	s := session.Must(session.NewSession(&awsv1.Config{
		Region:      awsv1.String(region),
		Endpoint:    awsv1.String(base),
		Credentials: credentialsv1.NewStaticCredentials(key, secret, ""),
		MaxRetries:  awsv1.Int(2),
	}))
	return map[string]func() error{
		"ec2":      func() error { _, err := ec2v1.New(s).DescribeInstances(nil); return err },
		"sts":      func() error { _, err := stsv1.New(s).GetCallerIdentity(nil); return err },
		"dynamodb": func() error { _, err := dynamodbv1.New(s).ListTables(nil); return err },
	}
}

func goGithub(base string) map[string]func() error {
	client := github.NewClient(http.DefaultClient).WithAuthToken("token")
	client.BaseURL, _ = url.Parse(base + "/")
	return map[string]func() error{
		"github": func() error { _, _, err := client.Users.Get(context.Background(), "x"); return err },
	}
}

// described gives what a caller would look at: the code of the service's error, and how often it was tried.
func described(err error) (string, *int) {
	var attempts *int
	var max *retry.MaxAttemptsError
	if errors.As(err, &max) {
		attempts = &max.Attempt
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode(), attempts
	}
	var old awserr.Error
	if errors.As(err, &old) {
		return old.Code(), nil
	}
	var abuse *github.AbuseRateLimitError
	if errors.As(err, &abuse) {
		return "AbuseRateLimitError", nil
	}
	var response *github.ErrorResponse
	if errors.As(err, &response) {
		return response.Response.Status + " " + response.Message, nil
	}
	return err.Error(), attempts
}

func main() {
	sdk, base, calls := os.Args[1], os.Args[2], os.Args[3]
	known := map[string]func(string) map[string]func() error{"go-v2": v2, "go-v1": v1, "go-github": goGithub}[sdk](base)
	out := json.NewEncoder(os.Stdout)
	for _, call := range strings.Split(calls, ",") {
		begun := time.Now()
		err := known[call]()
		told := report{Call: call, Ok: err == nil, Seconds: time.Since(begun).Seconds()}
		if err != nil {
			told.Error, told.Attempts = described(err)
		}
		if out.Encode(told) != nil {
			os.Exit(1)
		}
	}
}
