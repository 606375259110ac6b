//go:build tools

// Package ack pins the ACK controller that is built here.
package ack

import _ "github.com/aws-controllers-k8s/elbv2-controller/cmd/controller"
