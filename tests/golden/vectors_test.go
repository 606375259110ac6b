package golden

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var folder = flag.String("vectors", "vectors", "folder to write the vectors to")

// The modules that the vectors came from, of which only a package or two is used; go.sum pins the rest.
var sources = []string{
	"github.com/crossplane/crossplane-runtime/v2",
	"golang.org/x/time",
	"k8s.io/apimachinery",
	"k8s.io/apiserver",
	"k8s.io/client-go",
	"sigs.k8s.io/controller-runtime",
}

// A section of a file: a key and either a list, one element to a line so that a difference reads well, or any value.
type section struct {
	key   string
	value any
}

// rows is a list that is written one element to a line.
type rows []any

func TestVersions(t *testing.T) {
	// A test binary does not carry its modules; go.mod is beside it.
	list := exec.Command("go", append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}"}, sources...)...)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list, err)
	}
	versions := rows{}
	for line := range strings.Lines(string(out)) {
		versions = append(versions, strings.Fields(line))
	}
	write(t, "versions", section{"modules", versions})
}

// write writes vectors/NAME.json.
func write(t *testing.T, name string, sections ...section) {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("{")
	for i, s := range sections {
		if i > 0 {
			out.WriteString(",")
		}
		out.WriteString("\n")
		out.Write(encode(t, s.key))
		out.WriteString(":")
		list, isList := s.value.(rows)
		if !isList {
			out.Write(encode(t, s.value))
			continue
		}
		out.WriteString("[")
		for j, row := range list {
			if j > 0 {
				out.WriteString(",")
			}
			out.WriteString("\n")
			out.Write(encode(t, row))
		}
		out.WriteString("\n]")
	}
	out.WriteString("\n}\n")
	if err := os.MkdirAll(*folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*folder, name+".json"), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimRight(out.Bytes(), "\n")
}

// random is SplitMix64: seeded, and the same for every Go release.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// below gives 0 <= n < limit.
func (r *random) below(limit int) int {
	return int(r.next() % uint64(limit))
}

// percent is true that often.
func (r *random) percent(chance int) bool {
	return r.below(100) < chance
}

func pick[T any](r *random, from []T) T {
	return from[r.below(len(from))]
}
