package golden

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

// A case of bucket.json: a bucket, the times of its calls, and the wait of each. A row of reserves is
// [time since the last row, calls, delay of the first call, delay of the second, ...], all in ns.
type bucketCase struct {
	Name     string    `json:"name"`
	Rate     float64   `json:"rate"`
	Burst    int       `json:"burst"`
	Reserves [][]int64 `json:"reserves"`
}

func TestBuckets(t *testing.T) {
	var cases rows
	add := func(name string, limit float64, burst int, gaps func(row int) (time.Duration, int, bool)) {
		cases = append(cases, reserve(t, name, limit, burst, gaps))
	}
	for _, b := range []struct {
		limit float64
		burst int
	}{
		{5, 10}, {10, 100}, {20, 30}, {50, 100}, // the usual ones
		{1.25, 20}, {1, 1}, {0.138, 20}, {0.5, 1}, {0.1, 10}, // external APIs
		{3, 5}, {7, 7}, {7, 70}, {33.3, 50}, {0.7692307692307693, 1}, {0.001, 3}, {1234.5, 100}, {10000, 1}, // no whole number of ns
		{float64(float32(0.1)), 10}, {float64(float32(33.3)), 50}, // rest.Config.QPS is a float32
		{1e9, 1}, {1e9 / 1031425000.0, 1},
	} {
		add("all at once", b.limit, b.burst, func(row int) (time.Duration, int, bool) {
			return 0, b.burst + 150, row < 1
		})
		add("all at once, and again before it is over", b.limit, b.burst, func(row int) (time.Duration, int, bool) {
			return seconds(20 / b.limit), b.burst/2 + 10, row < 5
		})
		dice := random(7)
		add("at random", b.limit, b.burst, func(row int) (time.Duration, int, bool) {
			calls := 1
			if dice.percent(10) {
				calls = 1 + dice.below(b.burst+5)
			}
			// On average as fast as the bucket fills, now and then far apart.
			gap := seconds(float64(calls) / b.limit * float64(dice.below(2000)) / 1000)
			if dice.percent(3) {
				gap = seconds(float64(b.burst) / b.limit * 1.1)
			}
			return gap, calls, row < 120
		})
	}
	write(t, "bucket", section{"cases", cases})
}

// reserve asks two real buckets at the same moments: x/time/rate with the time as an argument, and client-go's
// BucketRateLimiter, which reads time.Now, inside a bubble. They must agree.
func reserve(t *testing.T, name string, limit float64, burst int, gaps func(row int) (time.Duration, int, bool)) bucketCase {
	t.Helper()
	c := bucketCase{Name: name, Rate: limit, Burst: burst}
	synctest.Test(t, func(t *testing.T) {
		told := rate.NewLimiter(rate.Limit(limit), burst)
		reading := &workqueue.TypedBucketRateLimiter[int]{Limiter: rate.NewLimiter(rate.Limit(limit), burst)}
		for row := 0; ; row++ {
			gap, calls, more := gaps(row)
			if !more {
				return
			}
			time.Sleep(gap)
			now := time.Now()
			delays := []int64{gap.Nanoseconds()}
			for range calls {
				delay := told.ReserveN(now, 1).DelayFrom(now)
				if other := reading.When(row); other != delay {
					t.Fatalf("%v/s burst %d: rate.Limiter says %v, BucketRateLimiter %v", limit, burst, delay, other)
				}
				delays = append(delays, delay.Nanoseconds())
			}
			c.Reserves = append(c.Reserves, delays)
		}
	})
	return c
}

// seconds in whole microseconds.
func seconds(s float64) time.Duration {
	return time.Duration(math.Round(s*1e6)) * time.Microsecond
}
