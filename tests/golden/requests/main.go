// Reads pairs of byte streams on standard input: the bytes that a client sent to a gate, and those that the gate sent on. net/http's own
// server reads both. Every request that it sees in the second stream must be in the first, in the same place and the same except for fields
// that concern one hop only.
//
// A stream is a length of four bytes, most significant first, and its bytes. The answer to every pair is a line: "same N" (N requests went
// on), "refused N REASON" (N did, and the server refuses another one of both streams for this reason), or "differs REASON".
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// request is one as the server saw it.
type request struct {
	method, target, host string
	length               int64
	header, trailer      []string
	body                 []byte
	whole                bool
}

// reading is what the server made of a stream.
type reading struct {
	requests []request
	refused  string // its own answer to what it takes for no request
}

// stream is a connection on which these bytes come, and nothing after them.
type stream struct {
	in     *bytes.Reader
	out    bytes.Buffer
	seen   []request
	closed chan struct{}
}

func (s *stream) Read(p []byte) (int, error)       { return s.in.Read(p) }
func (s *stream) Write(p []byte) (int, error)      { return s.out.Write(p) }
func (s *stream) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *stream) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }

func (s *stream) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

// listener hands out streams.
type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) { return <-l, nil }
func (l listener) Close() error              { return nil }
func (l listener) Addr() net.Addr            { return &net.TCPAddr{} }

func read(streams listener, input []byte) reading {
	s := &stream{in: bytes.NewReader(input), closed: make(chan struct{})}
	streams <- s
	<-s.closed
	out := s.out.String()
	refused := ""
	if at := strings.LastIndex(out, "HTTP/1.1 "); at >= 0 && out[at+9] >= '4' {
		head, body, _ := strings.Cut(out[at+9:], "\r\n\r\n")
		status, _, _ := strings.Cut(head, "\r\n")
		if _, why, ok := strings.Cut(body, ": "); ok {
			status = why
		}
		refused = status
	}
	return reading{s.seen, refused}
}

type key struct{}

func withStream(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, key{}, conn)
}

// see notes a request on its stream.
func see(w http.ResponseWriter, r *http.Request) {
	s := r.Context().Value(key{}).(*stream)
	declared := slices.Collect(maps.Keys(r.Trailer)) // of the others neither Go's client nor hyper's sends any on
	body, err := io.ReadAll(r.Body)
	s.seen = append(s.seen, request{
		method: r.Method, target: target(r.RequestURI), host: r.Host, length: r.ContentLength,
		header: endToEnd(r.Header), trailer: lines(only(r.Trailer, declared)), body: body, whole: err == nil,
	})
}

// target is the path and query as they came; of an absolute form only they go on.
func target(raw string) string {
	if strings.HasPrefix(raw, "/") || raw == "*" {
		return raw
	}
	if _, rest, ok := strings.Cut(raw, "://"); ok {
		at := strings.IndexAny(rest, "/?")
		switch {
		case at < 0:
			return "/"
		case rest[at] == '?':
			return "/" + rest[at:]
		}
		return rest[at:]
	}
	return raw
}

// endToEnd are the fields that concern more than one hop (RFC 9110, 7.6.1).
func endToEnd(header http.Header) []string {
	header = header.Clone()
	for _, line := range header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name := strings.TrimSpace(name); !strings.EqualFold(name, "te") {
				header.Del(name)
			}
		}
	}
	trailers := slices.ContainsFunc(strings.Split(strings.Join(header["Te"], ","), ","), func(coding string) bool {
		return strings.EqualFold(strings.Trim(coding, " \t"), "trailers")
	})
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Upgrade",
	} {
		header.Del(name)
	}
	if trailers {
		header.Set("Te", "trailers")
	}
	return lines(header)
}

func only(header http.Header, names []string) http.Header {
	some := http.Header{}
	for _, name := range names {
		some[name] = header[name]
	}
	return some
}

func lines(header http.Header) []string {
	var all []string
	for name, values := range header {
		for _, value := range values {
			all = append(all, name+": "+value)
		}
	}
	slices.SortStableFunc(all, func(a, b string) int {
		a, _, _ = strings.Cut(a, ":")
		b, _, _ = strings.Cut(b, ":")
		return strings.Compare(a, b)
	})
	return all
}

// carried is a target as the gate sends it on: the few bytes that its library cannot carry are percent-encoded, which says the same.
func carried(target string) string {
	path, query, asks := strings.Cut(characters(target), "?")
	path = strings.NewReplacer("<", "%3C", ">", "%3E", "`", "%60").Replace(path)
	if !asks {
		return path
	}
	return path + "?" + strings.NewReplacer("\"", "%22", "<", "%3C", ">", "%3E").Replace(query)
}

// characters is a text in which each byte that belongs to no character is percent-encoded.
func characters(text string) string {
	var clear strings.Builder
	for len(text) > 0 {
		character, size := utf8.DecodeRuneInString(text)
		if character == utf8.RuneError && size == 1 {
			fmt.Fprintf(&clear, "%%%02X", text[0])
		} else {
			clear.WriteString(text[:size])
		}
		text = text[size:]
	}
	return clear.String()
}

// differs says in what the request that went on is another one than the client's.
func differs(sent, on request) string {
	switch {
	case sent.method != on.method:
		return fmt.Sprintf("method %q, %q", sent.method, on.method)
	case carried(sent.target) != on.target:
		return fmt.Sprintf("target %q, %q", sent.target, on.target)
	case !strings.EqualFold(sent.host, on.host):
		return fmt.Sprintf("host %q, %q", sent.host, on.host)
	case sent.length != on.length:
		return fmt.Sprintf("length %d, %d", sent.length, on.length)
	case !slices.Equal(sent.header, on.header):
		return fmt.Sprintf("fields %q, %q", sent.header, on.header)
	case on.whole && !sent.whole:
		return "a body that is whole, of one that is not"
	case on.whole && !bytes.Equal(sent.body, on.body), !bytes.HasPrefix(sent.body, on.body):
		return fmt.Sprintf("body %q, %q", sent.body, on.body)
	case on.whole && !slices.Equal(sent.trailer, on.trailer):
		return fmt.Sprintf("trailers %q, %q", sent.trailer, on.trailer)
	}
	return ""
}

func compare(sent, on reading) string {
	for i, request := range on.requests {
		if i >= len(sent.requests) {
			if sent.refused != "" {
				return fmt.Sprintf("differs a request goes on that is refused here: %s", sent.refused)
			}
			return fmt.Sprintf("differs a request goes on that was none: %+v", request)
		}
		if why := differs(sent.requests[i], request); why != "" {
			return "differs " + why
		}
	}
	if on.refused == "" {
		return fmt.Sprintf("same %d", len(on.requests))
	}
	if sent.refused != on.refused || len(sent.requests) != len(on.requests) {
		return fmt.Sprintf("differs what goes on is refused: %s (what was sent: %s)", on.refused, sent.refused)
	}
	return fmt.Sprintf("refused %d %s", len(on.requests), on.refused)
}

func next(in io.Reader) ([]byte, error) {
	var length uint32
	if err := binary.Read(in, binary.BigEndian, &length); err != nil {
		return nil, err
	}
	bytes := make([]byte, length)
	_, err := io.ReadFull(in, bytes)
	return bytes, err
}

func main() {
	streams := make(listener)
	server := http.Server{
		Handler:                      http.HandlerFunc(see),
		ErrorLog:                     log.New(io.Discard, "", 0),
		DisableGeneralOptionsHandler: true,
		ConnContext:                  withStream,
	}
	go server.Serve(streams)
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		sent, err := next(in)
		if err != nil {
			return
		}
		on, err := next(in)
		if err != nil {
			log.Fatal(err)
		}
		line := compare(read(streams, sent), read(streams, on))
		fmt.Fprintln(out, strings.ReplaceAll(line, "\n", " "))
	}
}
