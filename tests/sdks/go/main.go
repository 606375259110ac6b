// Makes calls with the Go SDKs: `sdks SDK`, and a line `CALL URL` on stdin for each. Reports in JSON, a line each.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/route53"
	route53types "github.com/aws/aws-sdk-go-v2/service/route53/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	awsv1 "github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/awserr"
	credentialsv1 "github.com/aws/aws-sdk-go/aws/credentials"
	"github.com/aws/aws-sdk-go/aws/session"
	autoscalingv1 "github.com/aws/aws-sdk-go/service/autoscaling"
	cloudwatchv1 "github.com/aws/aws-sdk-go/service/cloudwatch"
	dynamodbv1 "github.com/aws/aws-sdk-go/service/dynamodb"
	ec2v1 "github.com/aws/aws-sdk-go/service/ec2"
	eksv1 "github.com/aws/aws-sdk-go/service/eks"
	elbv1 "github.com/aws/aws-sdk-go/service/elbv2"
	iamv1 "github.com/aws/aws-sdk-go/service/iam"
	route53v1 "github.com/aws/aws-sdk-go/service/route53"
	s3v1 "github.com/aws/aws-sdk-go/service/s3"
	stsv1 "github.com/aws/aws-sdk-go/service/sts"
	"github.com/aws/smithy-go"
	"github.com/google/go-github/v66/github"
)

const region = "eu-central-1"

var key, secret = given("TEST_KEY", "ASIAQNZGKIQY56JQ7WML"), given("TEST_SECRET", "secret")

func given(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

type report struct {
	Ok       bool   `json:"ok"`
	Error    string `json:"error"`
	Attempts *int   `json:"attempts"`
}

func v2(base string) map[string]func() error {
	config := aws.Config{
		Region:           region,
		BaseEndpoint:     aws.String(base),
		Credentials:      credentials.NewStaticCredentialsProvider(key, secret, ""),
		RetryMaxAttempts: 3,
	}
	if port := os.Getenv("TEST_ALIASES"); port != "" {
		// AWS's names lead to loopback, as a pod's hosts file with the gate's address would have it.
		config.HTTPClient = awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			dialer := &net.Dialer{}
			t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, "127.0.0.1:"+port)
			}
		})
	}
	ctx := context.Background()
	s3Client := s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true })
	bucket, name := aws.String("bucket"), aws.String("k")
	return map[string]func() error{
		"ec2": func() error {
			_, err := ec2.NewFromConfig(config).DescribeInstances(ctx, nil)
			return err
		},
		"ec2_write": func() error {
			_, err := ec2.NewFromConfig(config).CreateTags(ctx, &ec2.CreateTagsInput{
				Resources: []string{"i-1"},
				Tags:      []ec2types.Tag{{Key: aws.String("k"), Value: aws.String("v")}},
			})
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
		"eks_list": func() error {
			_, err := eks.NewFromConfig(config).ListClusters(ctx, nil)
			return err
		},
		"route53": func() error {
			_, err := route53.NewFromConfig(config).ListHostedZones(ctx, nil)
			return err
		},
		"route53_change": func() error {
			record := &route53types.ResourceRecordSet{
				Name:            aws.String("a.example"),
				Type:            route53types.RRTypeA,
				TTL:             aws.Int64(60),
				ResourceRecords: []route53types.ResourceRecord{{Value: aws.String("192.0.2.1")}},
			}
			changes := []route53types.Change{{Action: route53types.ChangeActionUpsert, ResourceRecordSet: record}}
			_, err := route53.NewFromConfig(config).ChangeResourceRecordSets(ctx, &route53.ChangeResourceRecordSetsInput{
				HostedZoneId: aws.String("Z1"),
				ChangeBatch:  &route53types.ChangeBatch{Changes: changes},
			})
			return err
		},
		"s3": func() error {
			got, err := s3Client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: name})
			if err == nil {
				_, err = io.ReadAll(got.Body)
			}
			return err
		},
		"s3_buckets": func() error {
			_, err := s3Client.ListBuckets(ctx, nil)
			return err
		},
		"s3_put": func() error {
			body := bytes.NewReader(bytes.Repeat([]byte("x"), 100_000))
			_, err := s3Client.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: name, Body: body})
			return err
		},
		"s3_upload": func() error {
			body := bytes.NewReader(make([]byte, large))
			_, err := s3Client.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: name, Body: body})
			return err
		},
		"s3_head": func() error {
			_, err := s3Client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: name})
			return err
		},
		"elbv2": func() error {
			_, err := elasticloadbalancingv2.NewFromConfig(config).DescribeLoadBalancers(ctx, nil)
			return err
		},
		"autoscaling": func() error {
			_, err := autoscaling.NewFromConfig(config).DescribeAutoScalingGroups(ctx, nil)
			return err
		},
		"iam":        func() error { _, err := iam.NewFromConfig(config).ListUsers(ctx, nil); return err },
		"cloudwatch": func() error { _, err := cloudwatch.NewFromConfig(config).ListMetrics(ctx, nil); return err },
	}
}

func v1(base string) map[string]func() error {
	config := &awsv1.Config{
		Region:           awsv1.String(region),
		Endpoint:         awsv1.String(base),
		Credentials:      credentialsv1.NewStaticCredentials(key, secret, ""),
		MaxRetries:       awsv1.Int(2),
		S3ForcePathStyle: awsv1.Bool(true),
	}
	if port := os.Getenv("TEST_ALIASES"); port != "" {
		config.HTTPClient = &http.Client{Transport: toLoopback(port)}
	}
	s := session.Must(session.NewSession(config))
	return map[string]func() error{
		"ec2": func() error { _, err := ec2v1.New(s).DescribeInstances(nil); return err },
		"ec2_write": func() error {
			_, err := ec2v1.New(s).CreateTags(&ec2v1.CreateTagsInput{
				Resources: []*string{awsv1.String("i-1")},
				Tags:      []*ec2v1.Tag{{Key: awsv1.String("k"), Value: awsv1.String("v")}},
			})
			return err
		},
		"route53_change": func() error {
			record := &route53v1.ResourceRecordSet{
				Name:            awsv1.String("a.example"),
				Type:            awsv1.String("A"),
				TTL:             awsv1.Int64(60),
				ResourceRecords: []*route53v1.ResourceRecord{{Value: awsv1.String("192.0.2.1")}},
			}
			changes := []*route53v1.Change{{Action: awsv1.String("UPSERT"), ResourceRecordSet: record}}
			_, err := route53v1.New(s).ChangeResourceRecordSets(&route53v1.ChangeResourceRecordSetsInput{
				HostedZoneId: awsv1.String("Z1"),
				ChangeBatch:  &route53v1.ChangeBatch{Changes: changes},
			})
			return err
		},
		"sts":        func() error { _, err := stsv1.New(s).GetCallerIdentity(nil); return err },
		"dynamodb":   func() error { _, err := dynamodbv1.New(s).ListTables(nil); return err },
		"eks_list":   func() error { _, err := eksv1.New(s).ListClusters(nil); return err },
		"route53":    func() error { _, err := route53v1.New(s).ListHostedZones(nil); return err },
		"s3_buckets": func() error { _, err := s3v1.New(s).ListBuckets(nil); return err },
		"s3_put": func() error {
			_, err := s3v1.New(s).PutObject(&s3v1.PutObjectInput{
				Bucket: awsv1.String("bucket"),
				Key:    awsv1.String("k"),
				Body:   bytes.NewReader(bytes.Repeat([]byte("x"), 100_000)),
			})
			return err
		},
		"s3_upload": func() error {
			_, err := s3v1.New(s).PutObject(&s3v1.PutObjectInput{
				Bucket: awsv1.String("bucket"),
				Key:    awsv1.String("k"),
				Body:   bytes.NewReader(make([]byte, large)),
			})
			return err
		},
		"elbv2":       func() error { _, err := elbv1.New(s).DescribeLoadBalancers(nil); return err },
		"autoscaling": func() error { _, err := autoscalingv1.New(s).DescribeAutoScalingGroups(nil); return err },
		"iam":         func() error { _, err := iamv1.New(s).ListUsers(nil); return err },
		"cloudwatch":  func() error { _, err := cloudwatchv1.New(s).ListMetrics(nil); return err },
	}
}

// toLoopback dials a port of this machine whatever the name, as a pod's hosts file with the gate's address would have it.
func toLoopback(port string) *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
	}
	return transport
}

func goGithub(base string) map[string]func() error {
	transport := http.DefaultTransport.(*http.Transport)
	if port := os.Getenv("TEST_ALIASES"); port != "" {
		transport = toLoopback(port)
	}
	client := github.NewClient(&http.Client{Transport: transport}).WithAuthToken("token")
	client.BaseURL, _ = url.Parse(base + "/")
	ctx := context.Background()
	return map[string]func() error{
		"github": func() error { _, _, err := client.Users.Get(ctx, "x"); return err },
		"github_write": func() error {
			_, _, err := client.Issues.Create(ctx, "o", "r", &github.IssueRequest{Title: github.String("t")})
			return err
		},
		"github_upload": func() error {
			content := &github.RepositoryContentFileOptions{Message: github.String("m"), Content: make([]byte, large)}
			_, _, err := client.Repositories.CreateFile(ctx, "o", "r", "f", content)
			return err
		},
		"github_pages": func() error {
			if _, _, err := client.Repositories.Get(ctx, "o", "moved"); err != nil {
				return err
			}
			issues, options := 0, &github.IssueListByRepoOptions{}
			for more := true; more; more = options.Page != 0 {
				page, response, err := client.Issues.ListByRepo(ctx, "o", "r", options)
				if err != nil {
					return err
				}
				issues, options.Page = issues+len(page), response.NextPage
			}
			if issues != 10 {
				return fmt.Errorf("%d issues", issues)
			}
			_, _, err := client.Issues.Create(ctx, "o", "r", &github.IssueRequest{Title: github.String("new")})
			return err
		},
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
	program := map[string]func(string) map[string]func() error{
		"go-v2": v2, "go-v1": v1, "go-github": goGithub, "net/http": netHTTP, "azcore": azure, "grpc-go": grpcGo,
		"godo": digitalOcean,
	}[os.Args[1]]
	// One client for each URL, as a program would have.
	clients := map[string]map[string]func() error{}
	out, lines := json.NewEncoder(os.Stdout), bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		call, base, _ := strings.Cut(lines.Text(), " ")
		if clients[base] == nil {
			clients[base] = program(base)
		}
		err := clients[base][call]()
		told := report{Ok: err == nil}
		if err != nil {
			told.Error, told.Attempts = described(err)
		}
		if out.Encode(told) != nil {
			os.Exit(1)
		}
	}
}
