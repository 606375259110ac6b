// Solves challenges with cert-manager's own solver for Route 53, all at once as its controller does: `certmanager ZONE COUNT`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/dns/route53"
)

// solve presents the record of a challenge and takes it away again, with credentials and region from the environment.
func solve(ctx context.Context, zone string, number int) error {
	solver, err := route53.NewDNSProvider(ctx, "", "", zone, "", "", "", true, nil, "cert-manager-challenges")
	if err != nil {
		return err
	}
	domain := fmt.Sprintf("d%d.example.com", number)
	record := "_acme-challenge." + domain + "."
	if err := solver.Present(ctx, domain, record, "token"); err != nil {
		return err
	}
	return solver.CleanUp(ctx, domain, record, "token")
}

func main() {
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	failures := make([]error, count)
	var solving sync.WaitGroup
	for number := range count {
		solving.Go(func() { failures[number] = solve(context.Background(), os.Args[1], number) })
	}
	solving.Wait()
	if err := errors.Join(failures...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
