package golden

import (
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

type limiter = workqueue.TypedRateLimiter[int]

// A case of backoff.json: what is limited how, and what came of it.
type backoffCase struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Numbers []int  `json:"numbers"`
	// ["w", item, delay, times]: the next `times` calls of When(item) give `delay` ns; null where Go leaves it to the machine.
	// ["f", item]: Forget(item). ["n", item, count]: NumRequeues(item) gives count.
	Steps []any `json:"steps"`
}

// recorder asks a limiter and writes the answers down, equal neighbours as one.
type recorder struct {
	limiter limiter
	steps   []any
	last    struct {
		item  int
		delay any
		times int
	}
}

func (r *recorder) when(item int) {
	r.record(item, r.limiter.When(item).Nanoseconds())
}

func (r *recorder) record(item int, delay any) {
	if r.last.times > 0 && r.last.item == item && r.last.delay == delay {
		r.last.times++
		return
	}
	r.flush()
	r.last.item, r.last.delay, r.last.times = item, delay, 1
}

func (r *recorder) forget(item int) {
	r.flush()
	r.limiter.Forget(item)
	r.steps = append(r.steps, []any{"f", item})
}

func (r *recorder) requeues(item int) {
	r.flush()
	r.steps = append(r.steps, []any{"n", item, r.limiter.NumRequeues(item)})
}

func (r *recorder) flush() {
	if r.last.times > 0 {
		r.steps = append(r.steps, []any{"w", r.last.item, r.last.delay, r.last.times})
		r.last.times = 0
	}
}

func (r *recorder) done() []any {
	r.flush()
	return r.steps
}

// wander does `count` random things to a handful of items.
func (r *recorder) wander(dice *random, count int) {
	for range count {
		item := dice.below(5)
		switch {
		case dice.percent(85):
			r.when(item)
		case dice.percent(50):
			r.forget(item)
		default:
			r.requeues(item)
		}
	}
}

func exponential(base, max time.Duration) (limiter, []int) {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[int](base, max), []int{int(base), int(max)}
}

func fastSlow(fast, slow time.Duration, attempts int) (limiter, []int) {
	return workqueue.NewTypedItemFastSlowRateLimiter[int](fast, slow, attempts), []int{int(fast), int(slow), attempts}
}

func TestBackoff(t *testing.T) {
	cases := rows{}
	cases = append(cases, exponentialCases()...)
	cases = append(cases, fastSlowCases()...)
	cases = append(cases, maxOfCases()...)
	cases = append(cases, maxWaitCases(t)...)
	write(t, "backoff", section{"cases", cases})
}

func exponentialCases() []any {
	var cases []any
	// Far enough for the maximum, for the guard against overflow and for 2^1024, which is infinite.
	for _, c := range []struct {
		name      string
		base, max time.Duration
	}{
		{"5ms to 1000s, as client-go's default", 5 * time.Millisecond, 1000 * time.Second},
		{"1s to 60s, as Crossplane", time.Second, time.Minute},
		{"1ms to 1000s, as client-go's item based default", time.Millisecond, 1000 * time.Second},
		{"1ms to 1s", time.Millisecond, time.Second},
		{"1min to 1000h", time.Minute, 1000 * time.Hour},
		{"1s to 30s, as Crossplane's composites", time.Second, 30 * time.Second},
		{"5ms without a maximum", 5 * time.Millisecond, math.MaxInt64},
		{"1ms without a maximum", time.Millisecond, math.MaxInt64},
		{"1s without a maximum", time.Second, math.MaxInt64},
		{"1min without a maximum", time.Minute, math.MaxInt64},
		{"a maximum below the base", time.Minute, time.Second},
		{"a maximum that no power meets", 3 * time.Millisecond, 1000*time.Second + 1},
	} {
		limiter, numbers := exponential(c.base, c.max)
		r := recorder{limiter: limiter}
		for range 1100 {
			r.when(0)
		}
		r.requeues(0)
		r.forget(0)
		r.when(0)
		cases = append(cases, backoffCase{c.name, "exponential", numbers, r.done()})
	}
	cases = append(cases, edgeOfTheRange())
	dice := random(4)
	for range 40 {
		base := time.Duration(1 + dice.below(int(time.Hour)))
		max := time.Duration(1 + dice.below(int(1000*time.Hour)))
		if dice.percent(50) {
			base = time.Duration(1+dice.below(1000)) * time.Millisecond
			max = time.Duration(1+dice.below(2000)) * time.Second
		}
		limiter, numbers := exponential(base, max)
		r := recorder{limiter: limiter}
		r.wander(&dice, 150)
		cases = append(cases, backoffCase{"random", "exponential", numbers, r.done()})
	}
	return cases
}

// edgeOfTheRange: with a base of 1 ns the 64th delay is 2^63 ns, which passes the guard and does not fit. The language leaves
// the conversion to the machine (negative on amd64, the largest number on arm64), so it is written down as null.
func edgeOfTheRange() backoffCase {
	limiter, numbers := exponential(1, math.MaxInt64)
	r := recorder{limiter: limiter}
	for failures := range 66 {
		if failures != 63 {
			r.when(0)
			continue
		}
		delay := limiter.When(0)
		if runtime.GOARCH == "amd64" && delay >= 0 {
			panic("2^63 ns has become representable")
		}
		r.record(0, nil)
	}
	return backoffCase{"2^63 ns", "exponential", numbers, r.done()}
}

func fastSlowCases() []any {
	var cases []any
	for _, c := range []struct {
		name       string
		fast, slow time.Duration
		attempts   int
	}{
		{"upstream's own", 5 * time.Millisecond, 10 * time.Second, 3},
		{"never fast", 5 * time.Millisecond, 10 * time.Second, 0},
		{"slow is faster", 10 * time.Second, 5 * time.Millisecond, 2},
	} {
		limiter, numbers := fastSlow(c.fast, c.slow, c.attempts)
		r := recorder{limiter: limiter}
		for range 50 {
			r.when(0)
		}
		r.requeues(0)
		r.when(1)
		r.when(1)
		r.requeues(1)
		r.forget(0)
		r.requeues(0)
		r.when(0)
		cases = append(cases, backoffCase{c.name, "fast_slow", numbers, r.done()})
	}
	dice := random(5)
	for range 20 {
		limiter, numbers := fastSlow(time.Duration(1+dice.below(int(time.Second))), time.Duration(1+dice.below(int(time.Hour))), dice.below(9))
		r := recorder{limiter: limiter}
		r.wander(&dice, 80)
		cases = append(cases, backoffCase{"random", "fast_slow", numbers, r.done()})
	}
	return cases
}

// maxOfCases joins fast/slow (the first three numbers) and exponential (the last two).
func maxOfCases() []any {
	var cases []any
	add := func(name string, steps int, fast, slow time.Duration, attempts int, base, max time.Duration, dice *random) {
		first, a := fastSlow(fast, slow, attempts)
		second, b := exponential(base, max)
		r := recorder{limiter: workqueue.NewTypedMaxOfRateLimiter(first, second)}
		if dice == nil {
			for range steps {
				r.when(0)
			}
			r.requeues(0)
			r.when(1)
			r.when(1)
			r.requeues(1)
			r.forget(0)
			r.requeues(0)
			r.when(0)
		} else {
			r.wander(dice, steps)
		}
		cases = append(cases, backoffCase{name, "max_of", append(a, b...), r.done()})
	}
	add("upstream's own", 5, 5*time.Millisecond, 3*time.Second, 3, time.Millisecond, time.Second, nil)
	add("upstream's own, for longer", 60, 5*time.Millisecond, 3*time.Second, 3, time.Millisecond, 10*time.Second, nil)
	dice := random(6)
	for range 20 {
		add("random", 80, time.Duration(1+dice.below(int(time.Second))), time.Duration(1+dice.below(int(time.Minute))), dice.below(9),
			time.Duration(1+dice.below(int(time.Second))), time.Duration(1+dice.below(int(time.Hour))), &dice)
	}
	return cases
}

// maxWaitCases clamps: exponential (base, max, clamp), and a bucket asked all at one instant (rate, burst, clamp).
func maxWaitCases(t *testing.T) []any {
	var cases []any
	for _, clamp := range []time.Duration{time.Second, 500 * time.Second, time.Hour} {
		inner, numbers := exponential(5*time.Millisecond, 1000*time.Second)
		r := recorder{limiter: workqueue.NewTypedWithMaxWaitRateLimiter(inner, clamp)}
		for range 30 {
			r.when(0)
		}
		r.requeues(0)
		r.forget(0)
		r.when(0)
		cases = append(cases, backoffCase{"exponential under " + clamp.String(), "max_wait_exponential", append(numbers, int(clamp)), r.done()})
	}
	for _, c := range []struct {
		rate, burst int
		clamp       time.Duration
	}{{10, 100, 5 * time.Second}, {5, 10, 8 * time.Second}, {50, 100, 100 * time.Millisecond}} {
		inner := &workqueue.TypedBucketRateLimiter[int]{Limiter: rate.NewLimiter(rate.Limit(c.rate), c.burst)}
		r := recorder{limiter: workqueue.NewTypedWithMaxWaitRateLimiter[int](inner, c.clamp)}
		synctest.Test(t, func(*testing.T) {
			for item := range c.burst + 150 {
				r.when(item)
			}
		})
		cases = append(cases, backoffCase{"bucket under " + c.clamp.String(), "max_wait_bucket", []int{c.rate, c.burst, int(c.clamp)}, r.done()})
	}
	return cases
}
