package golden

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
)

// The cost of the originals, for benches/decide, which runs these beside tidegate's limiter. No limit ever binds.

const plenty = 1 << 30

func BenchmarkRate_Allow(b *testing.B) {
	limiter := rate.NewLimiter(plenty, plenty)
	for b.Loop() {
		limiter.Allow()
	}
}

func BenchmarkRate_Allow_two_goroutines(b *testing.B) {
	limiter := rate.NewLimiter(plenty, plenty)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			limiter.Allow()
		}
	})
}

// The nearest it has to waiting: a reservation far ahead, given up again.
func BenchmarkRate_Reserve_and_Cancel_behind_100000(b *testing.B) {
	limiter := rate.NewLimiter(1, 1)
	for range 100_000 {
		limiter.Reserve()
	}
	for b.Loop() {
		limiter.Reserve().Cancel()
	}
}

func BenchmarkFlowcontrol_TryAccept(b *testing.B) {
	limiter := flowcontrol.NewTokenBucketRateLimiter(plenty, plenty)
	for b.Loop() {
		limiter.TryAccept()
	}
}

func BenchmarkWorkqueue_bucket_When(b *testing.B) {
	limiter := workqueue.TypedBucketRateLimiter[string]{Limiter: rate.NewLimiter(plenty, plenty)}
	for b.Loop() {
		limiter.When("item")
	}
}

// A healthy item beside so many that fail: Forget, as a controller calls it after every success.
func BenchmarkWorkqueue_Forget_healthy(b *testing.B) {
	besideFailing(b, func(limiter workqueue.TypedRateLimiter[string], _ []string, _ int) {
		limiter.Forget("healthy")
	})
}

// Another failure of one of so many that fail.
func BenchmarkWorkqueue_When_failing(b *testing.B) {
	besideFailing(b, func(limiter workqueue.TypedRateLimiter[string], items []string, n int) {
		limiter.When(items[n*7919%len(items)])
	})
}

func besideFailing(b *testing.B, once func(workqueue.TypedRateLimiter[string], []string, int)) {
	for _, count := range []int{1, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("beside_%d", count), func(b *testing.B) {
			limiter := workqueue.NewTypedMaxOfRateLimiter(
				workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 1000*time.Second),
				&workqueue.TypedBucketRateLimiter[string]{Limiter: rate.NewLimiter(plenty, plenty)},
			)
			items := make([]string, count)
			before := onHeap()
			for n := range items {
				items[n] = fmt.Sprintf("some-namespace/object-%07d", n)
				limiter.When(items[n])
			}
			after := onHeap()
			n := 0
			for b.Loop() {
				once(limiter, items, n)
				n++
			}
			if count > 1 {
				b.ReportMetric((after-before)/float64(count), "B/item")
			}
		})
	}
}

func onHeap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}
