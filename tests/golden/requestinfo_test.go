package golden

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/klog/v2"
)

// Columns of a row of requestinfo.json. A target that Go's HTTP server answers with 400 has the first three only.
var columns = []string{
	"method", "target",
	"outcome", // 0; 1: RequestInfo returned an error beside what follows; 2: not an HTTP request
	"verb", "is_resource",
	"path", // null: the target up to the query
	"prefix", "group", "version", "namespace", "resource", "name", "subresource",
	"parts", // how many of the path's last segments
	"field_selector", "label_selector",
	"long_running", // filters.BasicLongRunningRequestCheck with kube-apiserver's verbs and subresources
}

func TestRequestInfo(t *testing.T) {
	klog.LogToStderr(false) // it logs every query that it cannot decode
	var listed, random rows
	for _, row := range strings.Split(strings.TrimSpace(listedRequests), "\n") {
		method, target, _ := strings.Cut(strings.TrimSpace(row), " ")
		listed = append(listed, read(t, method, strings.TrimSpace(target)))
	}
	urls := newURLs(9)
	for range 10_000 {
		method, target := urls.next()
		random = append(random, read(t, method, target))
	}
	write(t, "requestinfo",
		section{"columns", columns},
		section{"listed", listed},
		section{"random", random},
		// The name that ?fieldSelector= gives to GET /api/v1/pods: [selector as in the URL, name].
		section{"selectors", selectors(t)},
	)
}

// As kube-apiserver sets them (pkg/controlplane/apiserver).
var (
	resolver = request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
	longRunning = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
)

// read sends the request line through Go's HTTP parser, as the API server would get it, and through RequestInfo.
func read(t *testing.T, method, target string) []any {
	t.Helper()
	wire := method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire)))
	if err != nil {
		return []any{method, target, 2}
	}
	info, err := resolver.NewRequestInfo(req)
	outcome := 0
	if err != nil {
		outcome = 1
	}
	var path any
	if raw, _, _ := strings.Cut(target, "?"); info.Path != raw {
		path = info.Path
	}
	segments := strings.Split(strings.Trim(info.Path, "/"), "/")
	if tail := segments[len(segments)-len(info.Parts):]; !slices.Equal(tail, info.Parts) {
		t.Fatalf("%s %s: parts %q are not the end of %q", method, target, info.Parts, segments)
	}
	return []any{
		method, target, outcome, info.Verb, bit(info.IsResourceRequest), path,
		info.APIPrefix, info.APIGroup, info.APIVersion, info.Namespace, info.Resource, info.Name, info.Subresource,
		len(info.Parts), info.FieldSelector, info.LabelSelector, bit(longRunning(req, info)),
	}
}

// selectors are made of little else than what their grammar turns on.
func selectors(t *testing.T) rows {
	t.Helper()
	var out rows
	dice := random(11)
	word := func(words string) string { return pick(&dice, strings.Fields(words)) }
	for range 3000 {
		var selector strings.Builder
		for term := range 1 + dice.below(3) {
			if term > 0 {
				selector.WriteString(word(", , , %2C ,,"))
			}
			selector.WriteString(word("metadata.name metadata.name metadata.name metadata.namespace a"))
			selector.WriteString(word("= = = == %3D != !"))
			for range dice.below(4) {
				selector.WriteString(word(`a b foo . + - \\ \, \= %5C%5C %5C, ! / %25 %C3%A9`))
			}
			if dice.percent(10) {
				selector.WriteString(word(`= == != \ \a , ! %2C metadata.name metadata.name=`))
			}
		}
		row := read(t, "GET", "/api/v1/pods?fieldSelector="+selector.String())
		out = append(out, []any{selector.String(), row[slices.Index(columns, "name")]})
	}
	return out
}

func bit(set bool) int {
	if set {
		return 1
	}
	return 0
}

// durations.json: time.ParseDuration, which reads ?timeout= in client-go and in the API server. [text, ns], null: an error.
func TestDurations(t *testing.T) {
	var out rows
	add := func(text string) {
		if parsed, err := time.ParseDuration(text); err == nil {
			out = append(out, []any{text, parsed.Nanoseconds()})
		} else {
			out = append(out, []any{text, nil})
		}
	}
	for _, text := range strings.Fields(`0 0s 5s 30s 1m0s 1h15m30.918273645s 1478s 5.0s 5.6s 5.s .5s 1.0s 1.00s 1.004s 100.00100s
		10ns 11us 12µs 12μs 13ms 14s 15m 16h 3h30m 10.5s4m 4m10.5s 2m3.4s 1h2m3s4ms5us6ns 39h9m14.425s 52763797000ns
		0.3333333333333333333h 9007199254740993ns 9223372036854775807ns 9223372036854775.807us 9223372036s854ms775us807ns
		0.100000000000000000000h 0.830103483285477580700h 5 3 -5s +5s -0 +0 -.5s -2m3.4s . .s - s -. + +.s 1d 1w 1y 1x 1S 1M 1m1 1ms1
		3000000h 9223372036854775808ns 9223372036854775.808us 9223372036854ms775us808ns 106751h59m 2562047h47m16.854775807s
		2562047h47m16.854775808s 1e3s 1_000s 1,5s 0x1s ١s 1.s1 1..s 1.2.3s --1s 1s- 00001s 1h1h 1ms1ms 1s.5s 0.s 0h0m 500µ 10uS`) {
		add(text)
	}
	add("")
	add(" 1s")
	add("1s ")
	add("1 s")
	dice := random(10)
	for range 300 {
		var text strings.Builder
		for range 1 + dice.below(4) {
			text.WriteString(pick(&dice, []string{"1", "0", "15", "3.5", ".25", "007", "1.", "99999", "0.000000001", "12345678901"}))
			text.WriteString(pick(&dice, []string{"s", "ms", "m", "h", "us", "µs", "ns", "s", "m", "", "d"}))
		}
		add(text.String())
	}
	write(t, "durations", section{"durations", out})
}
