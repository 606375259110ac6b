package golden

import "strings"

// Every row of apiserver's own requestinfo_test.go, and what its code implies beyond them.
const listedRequests = `
GET /api/v1/namespaces
GET /api/v1/namespaces/other
GET /api/v1/namespaces/other/pods
GET /api/v1/namespaces/other/pods/foo
HEAD /api/v1/namespaces/other/pods/foo
GET /api/v1/pods
HEAD /api/v1/pods
GET /api/v1/proxy/namespaces/other/pods/foo
GET /api/v1/proxy/namespaces/other/pods/foo/subpath/not/a/subresource
GET /api/v1/watch/pods
GET /api/v1/pods?watch=true
GET /api/v1/pods?watch=false
GET /api/v1/watch/namespaces/other/pods
GET /api/v1/namespaces/other/pods?watch=1
GET /api/v1/namespaces/other/pods?watch=0
GET /api/v1/namespaces/other/pods/foo/status
GET /api/v1/namespaces/other/pods/foo/proxy/subpath
PUT /api/v1/namespaces/other/finalize
PUT /api/v1/namespaces/other/status
PATCH /api/v1/namespaces/other/pods/foo
DELETE /api/v1/namespaces/other/pods/foo
POST /api/v1/namespaces/other/pods
DELETE /api/v1/nodes
DELETE /api/v1/namespaces
DELETE /api/v1/namespaces/other/pods
DELETE /apis/extensions/v1/namespaces/other/pods
POST /apis/extensions/v1/namespaces/other/pods
POST /apis/extensions/v1beta3/namespaces/other/pods
GET /
GET /api/version/
GET /apis/group/version/
GET /badprefix/version/resource
GET /apis/version/resource
GET /api/version/resource
GET /apis/group/version/resource/name/subresource
GET /api/version/resource/name/subresource
GET /apis/batch/v1/job
GET /apis/batch/v1/job/foo
GET /apis/batch/v1/job/foo/scale
GET /not-api/version/resource
GET /apis/extensions/v1beta1
GET /apis/extensions/v1beta1/
GET /api/version
GET /api
GET 
GET /apis/group/version/resource?fieldSelector=metadata.name=name1
GET /apis/group/version/resource?watch=true&fieldSelector=metadata.name=name1
GET /apis/group/version/resource?fieldSelector=foo=bar&labelSelector=baz=qux
GET /apis/group/version/resource?fieldSelector=metadata.name=name1,foo
GET /apis/group/version/resource?fieldSelector=metadata.name=name1,foo&watch=true
GET /apis/group/version/resource?fieldSelector=metadata.name=name1,foo&watch=false
DELETE /apis/group/version/resource?fieldSelector=foo=bar&labelSelector=baz=qux
GET /apis/group/version/resource?fieldSelector=metadata.name=foo&fieldSelector=metadata.name=bar&labelSelector=foo=bar&labelSelector=foo=baz
GET /apis/group/version/resource/name?fieldSelector=foo=bar&labelSelector=foo=bar
GET /apis/group/version/watch/resource?fieldSelector=metadata.name=foo&labelSelector=foo=bar
GET /apis/group/version/watch/resource/name?fieldSelector=metadata.name=foo&labelSelector=foo=bar
GET /api/v1/watch
GET /api/v1/watch/
GET /api/v1/proxy
POST /apis/g/v/watch
GET /api/v1/pods?watch
GET /api/v1/pods?watch=
GET /api/v1/pods?watch=FALSE
GET /api/v1/pods?limit=abc&watch=1
OPTIONS /api/v1/pods
GET /api/v1//pods
HEAD /api/v1/pods?watch=1
GET /api/v1/namespaces/ns/status
PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/id
GET /api/v1/namespaces/ns/pods/foo?watch=true
DELETE /api/v1/namespaces/ns/pods/foo?watch=true
POST /api/v1/watch/pods
DELETE /api/v1/watch/pods
PATCH /api/v1/proxy/nodes/n/s
GET /api/v1/namespaces/ns/pods/p/log
GET /api/v1/namespaces/ns/pods/p/log?follow=true
GET /api/v1/namespaces/ns/pods/p/log?follow=false
GET /api/v1/namespaces/ns/pods/p/log/x?follow=1
POST /api/v1/namespaces/ns/pods/p/exec?command=ls
POST /api/v1/namespaces/ns/pods/p/attach
POST /api/v1/namespaces/ns/pods/p/portforward
GET /api/v1/namespaces/ns/services/s/proxy
GET /api/v1/namespaces/ns/services/s/proxy/
POST /api/v1/namespaces/ns/pods/p/eviction
POST /api/v1/namespaces/ns/serviceaccounts/sa/token
GET /debug/pprof/profile
GET /debug/pprof/
GET /debug/pprof
GET /livez?verbose
POST /healthz
PUT /version
PATCH /openapi/v2
DELETE /openapi/v3/apis/apps/v1
OPTIONS *
OPTIONS /healthz
TRACE /api/v1/pods
WATCH /healthz
PROXY /healthz
WATCH /api/v1/pods
get /api/v1/pods
get /healthz
Delete /healthz
PROPFIND /api/v1/pods
GET http://other.example/api/v1/namespaces/ns/pods?watch=1
GET http://other.example
GET //api/v1/pods
GET ///api/v1/pods
GET /api//v1/pods
GET /api/v1/pods//
GET /api/v1//
GET /api/v1/namespaces//pods
GET /api/v1/namespaces///pods
GET /api/v1/namespaces/ns//pods
GET /api/v1/namespaces/ns/pods//log
DELETE /api/v1/namespaces/ns/pods//log
GET /apis//v1/pods
GET /apis/g//pods
GET /apis/g//pods/p
GET /api/v1/%6eamespaces/ns/pods
GET /%61pi/v1/pods
GET /api/v1/wat%63h/pods
GET /api%2Fv1%2Fpods
GET /api/v1/namespaces/ns%2Fpods/x
GET /api/v1/namespaces/ns/pods/a%2Fb
GET /api/v1/namespaces/ns/pods/%252e
GET /api/v1/namespaces/ns/pods/..
GET /api/v1/namespaces/../pods
GET /api/v1/./pods
GET /api/v1/%2e%2e/pods
GET /api/v1/pods;v=1
GET /api/v1/pods%3Fwatch=1
GET /api/v1/pods%00
GET /api/v1/pods/%ff
GET /api/v1/pods/%c0%af
GET /api/v1/pods/%zz
GET /api/v1/pods/%
GET /api/v1/pods/%4
GET /api/v1/pods/a b
GET /api/v1/pods/a+b
GET /api/v1/pods/a|b
GET /api/v1/pods/a"b
GET /api/v1/pods/{a}
GET /api/v1/pods/a^b
GET /api/v1/pods/caf%C3%A9
GET /api/v1/pods/café
GET /api/v1/pods#fragment
GET /api/v1/pods?watch=1#fragment
GET /api/v1/pods?
GET /api/v1/pods??watch=1
GET /api/v1/pods?watch=1?
GET /api/v1/pods?&&watch=1&&
GET /api/v1/pods?=watch
GET /api/v1/pods?watch=%zz
GET /api/v1/pods?watch=%zz&watch=1
GET /api/v1/pods?watch=1;limit=5
GET /api/v1/pods?watch=0;&watch=1
GET /api/v1/pods?%77atch=1
GET /api/v1/pods?WATCH=1
GET /api/v1/pods?watch=%30
GET /api/v1/pods?watch=f%61lse
GET /api/v1/pods?watch=+0
GET /api/v1/pods?watch=0&watch=1
GET /api/v1/pods?watch=no
GET /api/v1/pods?watch=00
GET /api/v1/pods?watch=%C4%B1
GET /api/v1/pods?limit=&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=5&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=-5&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=%2B5&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=+5&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=05&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=0x5&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=1_0&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=5.0&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=9223372036854775807&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=9223372036854775808&fieldSelector=metadata.name=x
GET /api/v1/pods?limit=5&limit=x&fieldSelector=metadata.name=x
GET /api/v1/pods?timeoutSeconds=&fieldSelector=metadata.name=x
GET /api/v1/pods?timeoutSeconds=30&fieldSelector=metadata.name=x
GET /api/v1/pods?timeoutSeconds=30s&fieldSelector=metadata.name=x
GET /api/v1/pods?timeout=nonsense&fieldSelector=metadata.name=x
GET /api/v1/pods?resourceVersionMatch=nonsense&fieldSelector=metadata.name=x
GET /api/v1/pods?sendInitialEvents=nonsense&fieldSelector=metadata.name=x
GET /api/v1/pods?allowWatchBookmarks=nonsense&fieldSelector=metadata.name=x
GET /api/v1/pods?kind=Foo&apiVersion=bar&fieldSelector=metadata.name=x
GET /api/v1/pods?shardSelector=nonsense&fieldSelector=metadata.name=x
GET /api/v1/pods?labelSelector=&fieldSelector=metadata.name=x
GET /api/v1/pods?labelSelector=a+in+(b,c)&fieldSelector=metadata.name=x
GET /api/v1/pods?labelSelector=a+in+(b&fieldSelector=metadata.name=x
GET /api/v1/pods?labelSelector=%3D&fieldSelector=metadata.name=x
GET /api/v1/pods?labelSelector=!a&fieldSelector=metadata.name=x
GET /api/v1/pods?fieldSelector=
GET /api/v1/pods?fieldSelector
GET /api/v1/pods?fieldSelector=metadata.name
GET /api/v1/pods?fieldSelector=metadata.name=
GET /api/v1/pods?fieldSelector=metadata.name==x
GET /api/v1/pods?fieldSelector=metadata.name===x
GET /api/v1/pods?fieldSelector=metadata.name!=x
GET /api/v1/pods?fieldSelector=metadata.name%3Dx
GET /api/v1/pods?fieldSelector=metadata.name%3D%3Dx
GET /api/v1/pods?fieldSelector=metadata.name=x,
GET /api/v1/pods?fieldSelector=,metadata.name=x
GET /api/v1/pods?fieldSelector=metadata.name=x,,metadata.namespace=y
GET /api/v1/pods?fieldSelector=metadata.namespace=y,metadata.name=x
GET /api/v1/pods?fieldSelector=spec.nodeName=n%2Cmetadata.name=x
GET /api/v1/pods?fieldSelector=metadata.name=b,metadata.name=a
GET /api/v1/pods?fieldSelector=metadata.name==a,metadata.name=b
GET /api/v1/pods?fieldSelector=metadata.name!=a,metadata.name=b
GET /api/v1/pods?fieldSelector=metadata.name=x=y
GET /api/v1/pods?fieldSelector=metadata.name=x\=y
GET /api/v1/pods?fieldSelector=metadata.name=x\,y
GET /api/v1/pods?fieldSelector=metadata.name=x\\y
GET /api/v1/pods?fieldSelector=metadata.name=x\y
GET /api/v1/pods?fieldSelector=metadata.name=x\
GET /api/v1/pods?fieldSelector=metadata\.name=x
GET /api/v1/pods?fieldSelector=metadata.name\=x
GET /api/v1/pods?fieldSelector=metadata.name\!=x
GET /api/v1/pods?fieldSelector=+metadata.name=x
GET /api/v1/pods?fieldSelector=metadata.name+=x
GET /api/v1/pods?fieldSelector=metadata.name=+x
GET /api/v1/pods?fieldSelector=metadata.name=.
GET /api/v1/pods?fieldSelector=metadata.name=..
GET /api/v1/pods?fieldSelector=metadata.name=...
GET /api/v1/pods?fieldSelector=metadata.name=a/b
GET /api/v1/pods?fieldSelector=metadata.name=a%25b
GET /api/v1/pods?fieldSelector=metadata.name=%ff
GET /api/v1/pods?fieldSelector=metadata.name=caf%C3%A9
GET /api/v1/pods?fieldSelector=Metadata.name=x
GET /api/v1/pods?fieldSelector==x
GET /api/v1/pods?fieldSelector=a!b=c,metadata.name=x
GET /api/v1/pods?fieldSelector=a=b!=c,metadata.name=x
GET /api/v1/pods?fieldSelector=a=!b,metadata.name=x
GET /api/v1/namespaces?fieldSelector=metadata.name=x
GET /api/v1/namespaces/ns/pods?fieldSelector=metadata.name=x&watch=1
GET /api/v1/watch/pods?fieldSelector=metadata.name=x
DELETE /api/v1/pods?fieldSelector=metadata.name=x
POST /api/v1/pods?fieldSelector=metadata.name=x
`

// urls makes requests that are mostly plausible and often broken in one place.
type urls struct {
	dice random
}

func newURLs(seed uint64) *urls {
	return &urls{random(seed)}
}

func (u *urls) next() (method, target string) {
	method = u.method()
	target = u.spoil(u.path())
	if u.dice.percent(55) {
		target += "?" + u.query()
	}
	return method, target
}

func (u *urls) method() string {
	if u.dice.percent(3) {
		return u.pick("OPTIONS TRACE PROPFIND get Post WATCH")
	}
	return u.pick("GET GET GET GET GET HEAD POST PUT PATCH DELETE DELETE")
}

func (u *urls) path() string {
	if u.dice.percent(8) {
		return u.pick(`/ /healthz /livez/ping /readyz /version /api /apis /api/ /apis/ /api/v1 /api/v1/ /apis/apps /apis/apps/v1
			/apis/apps/v1/ /openapi/v2 /openapi/v3/apis/apps/v1 /metrics /debug/pprof/heap /debug/pprof /debug/pprofx /logs/x /favicon.ico
			/.well-known/openid-configuration /openid/v1/jwks /x/v1/pods /Api/v1/pods /APIS/apps/v1/deployments /apis/metrics.k8s.io`)
	}
	parts := []string{"", "api", u.pick("v1 v1 v1 v2 watch")}
	if u.dice.percent(50) {
		parts = []string{"", "apis", u.pick(`apps batch coordination.k8s.io events.k8s.io ec2.aws.upbound.io authorization.k8s.io
			zalando.org api watch namespaces`), u.pick("v1 v1 v1beta1 v1alpha1 namespaces")}
	}
	if u.dice.percent(12) {
		parts = append(parts, u.pick("watch watch watch proxy"))
	}
	if u.dice.percent(60) {
		parts = append(parts, "namespaces")
		if u.dice.percent(92) {
			parts = append(parts, u.pick("default kube-system ns a prod-eu-1 namespaces status watch"))
		}
		if u.dice.percent(8) {
			parts = append(parts, u.pick("status finalize"))
		}
	}
	if u.dice.percent(92) {
		parts = append(parts, u.pick(`pods services secrets configmaps leases events deployments nodes jobs vpcs tokenreviews
			subjectaccessreviews kopfpeerings namespaces watch proxy`))
		if u.dice.percent(65) {
			parts = append(parts, u.pick("foo my-app-0 web.17a2b3 system:node:n1 x.y.z log status 0 UPPER a_b"))
			if u.dice.percent(45) {
				parts = append(parts, u.pick(`status scale log exec attach portforward proxy eviction binding finalize token
					ephemeralcontainers Log watch`))
				for u.dice.percent(25) {
					parts = append(parts, u.pick("a b log exec .. index.html"))
				}
			}
		}
	}
	return strings.Join(parts, "/")
}

// spoil breaks some paths in a place or two.
func (u *urls) spoil(path string) string {
	for u.dice.percent(22) {
		at := u.dice.below(len(path) + 1)
		slash := strings.LastIndex(path[:at], "/")
		switch u.dice.below(9) {
		case 0: // a separator too many
			path = path[:slash+1] + "/" + path[slash+1:]
		case 1: // a separator that is none yet
			if slash > 0 {
				path = path[:slash] + u.pick("%2F %2f %5C") + path[slash+1:]
			}
		case 2: // an ordinary letter, escaped
			if at < len(path) && path[at] >= 'a' && path[at] <= 'z' && !escaped(path, at) {
				path = path[:at] + "%" + string("0123456789abcdef"[path[at]>>4]) + string("0123456789ABCDEF"[path[at]&15]) + path[at+1:]
			}
		case 3:
			path = path[:slash+1] + u.pick(". .. %2e%2e %2E .%2e ...") + "/" + path[slash+1:]
		case 4:
			path += u.pick("/ // /%20 /. /.. ;a=b %00 %0a %7f / /")
		case 5:
			path += u.pick("%ff %c0%af %C3%A9 é %25 %252F %zz % %4 ~ ! $ ' ( ) * , : @ + = | \" { } < > ` ^ \\")
		case 6: // part of it twice
			path = path[:slash+1] + u.pick("namespaces watch proxy api v1 status pods") + "/" + path[slash+1:]
		case 7: // cut short
			if slash > 0 {
				path = path[:slash]
			}
		case 8:
			if u.dice.percent(50) {
				path = "/" + path
			} else {
				path = "http://elsewhere.example" + path
			}
		}
		if !strings.HasPrefix(path, "/") {
			return path // only once in absolute form
		}
	}
	return path
}

// escaped: whether a letter belongs to an escape.
func escaped(path string, at int) bool {
	return strings.Contains(path[max(0, at-2):at], "%")
}

func (u *urls) query() string {
	var pairs []string
	for range 1 + u.dice.below(4) {
		pairs = append(pairs, u.pair())
	}
	return strings.Join(pairs, "&")
}

func (u *urls) pair() string {
	switch u.dice.below(10) {
	case 0, 1, 2:
		return u.pick("watch watch=true watch=1 watch=0 watch=false watch=FALSE watch= watch=yes watch=%30 w%61tch=1 watch=%zz watch=1;a=b Watch=1")
	case 3, 4, 5:
		return "fieldSelector=" + u.selector()
	case 6:
		return u.pick(`limit=500 limit=0 limit=abc limit= limit=-1 limit=%2B7 limit=99999999999999999999 timeoutSeconds=300 timeoutSeconds=
			timeoutSeconds=5m timeoutSeconds=1.5`)
	case 7:
		return u.pick(`labelSelector=a=b labelSelector=a%3Db labelSelector=app+in+(x,y) labelSelector=!x labelSelector=x,y labelSelector=
			labelSelector=a+in+( labelSelector=a=b=c labelSelector=%3D%3D labelSelector=-`)
	case 8:
		return u.pick(`resourceVersion=0 resourceVersion=12345 resourceVersionMatch=NotOlderThan allowWatchBookmarks=true sendInitialEvents=true
			continue=abc%3D timeout=10s timeout=5m30s follow=true follow=false follow dryRun=All pretty=1 fieldManager=x force=true`)
	default:
		return u.pick("a=b = & ;  x%zz=1 %=1 +=+ a=b=c é=é tailLines=5 command=ls container=c ?")
	}
}

func (u *urls) selector() string {
	var terms []string
	for range 1 + u.dice.below(2)*u.dice.below(3) {
		terms = append(terms, u.pick(`metadata.name=foo metadata.name=foo metadata.name==bar metadata.name!=foo metadata.name%3Dfoo
			metadata.name= metadata.name metadata.name=a\,b metadata.name=a\\b metadata.name=a\=b metadata.name=a\x metadata.name=a=b
			metadata.name=. metadata.name=.. metadata.name=a/b metadata.name=a%2525 metadata.name=a+b metadata.name=%C3%A9
			metadata.namespace=ns spec.nodeName=n1 status.phase!=Running involvedObject.name=foo foo a=b !=x =x +metadata.name=foo
			metadata.name=zz metadata.name%3D%3Dab`))
	}
	return strings.Join(terms, u.pick(", , %2C ,,"))
}

// pick takes one of the words.
func (u *urls) pick(words string) string {
	return pick(&u.dice, strings.Fields(words))
}
