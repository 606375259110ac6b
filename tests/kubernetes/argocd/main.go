// Command argocd is two of Argo CD's own programs: its application controller, which calls the clusters, and the server of repositories,
// from which the controller gets what git says.
package main

import (
	"fmt"
	"os"

	"github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	repositories "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
)

func main() {
	programs := map[string]func() error{
		"controller":   commands.NewCommand().Execute,
		"repositories": repositories.NewCommand().Execute,
	}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: argocd controller|repositories [flags]")
		os.Exit(64)
	}
	run := programs[os.Args[1]]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	if err := run(); err != nil {
		os.Exit(1)
	}
}
