package golden

import (
	"container/heap"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

const items = 10_000

// controller.json: the whole DefaultTypedControllerRateLimiter over 10,000 items, in a bubble.
func TestController(t *testing.T) {
	write(t, "controller",
		// The delays of the items, all failing at one instant: runs of [delay in ns of the first, step, count].
		section{"together", together(t, workqueue.DefaultTypedControllerRateLimiter[int])},
		// The same where the backoff of all ends at one instant, after a minute, and tokens have been handed out for that long.
		section{"ending_together", together(t, func() limiter {
			return workqueue.NewTypedMaxOfRateLimiter(
				workqueue.NewTypedItemExponentialFailureRateLimiter[int](time.Minute, time.Minute),
				&workqueue.TypedBucketRateLimiter[int]{Limiter: rate.NewLimiter(rate.Limit(10), 100)},
			)
		})},
		// Items that fail, wait as long as they were told, are tried, and fail or succeed: [us since the row before, item, delay in ns],
		// delay -1: it succeeded and was forgotten. An item's first row is its first failure.
		section{"retried", retried(t)},
	)
}

func together(t *testing.T, make func() limiter) rows {
	var delays []int64
	synctest.Test(t, func(*testing.T) {
		limiter := make()
		for item := range items {
			delays = append(delays, limiter.When(item).Nanoseconds())
		}
	})
	return runs(delays)
}

// runs cuts numbers into arithmetic runs.
func runs(numbers []int64) rows {
	var out rows
	for len(numbers) > 0 {
		step, count := int64(0), 1
		if len(numbers) > 1 {
			step = numbers[1] - numbers[0]
		}
		for count < len(numbers) && numbers[count]-numbers[count-1] == step {
			count++
		}
		out = append(out, []int64{numbers[0], step, int64(count)})
		numbers = numbers[count:]
	}
	return out
}

// A try is an item whose outcome will be known then.
type try struct {
	at   time.Duration
	item int
}

type tries []try

func (t tries) Len() int { return len(t) }
func (t tries) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].item < t[j].item
}
func (t tries) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *tries) Push(x any)   { *t = append(*t, x.(try)) }
func (t *tries) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func retried(t *testing.T) rows {
	var out rows
	synctest.Test(t, func(*testing.T) {
		dice := random(8)
		limiter := workqueue.DefaultTypedControllerRateLimiter[int]()
		began := time.Now()
		var pending tries
		// In waves, so that the bucket is now full and now deep in debt: a wave of 20 to 800 items, then up to 2 minutes' peace.
		for item, wave := 0, time.Duration(0); item < items; wave += time.Duration(dice.below(120_000)) * time.Millisecond {
			for left := 20 + dice.below(780); left > 0 && item < items; left-- {
				heap.Push(&pending, try{wave + time.Duration(dice.below(2_000_000))*time.Microsecond, item})
				item++
			}
		}
		last := time.Duration(0)
		for len(pending) > 0 {
			next := heap.Pop(&pending).(try)
			time.Sleep(next.at - time.Since(began))
			row := []int64{(next.at - last).Microseconds(), int64(next.item), -1}
			// The first outcome is a failure; later ones succeed often enough that it ends.
			if limiter.NumRequeues(next.item) == 0 || dice.percent(45) {
				delay := limiter.When(next.item)
				row[2] = delay.Nanoseconds()
				service := time.Duration(1+dice.below(50_000)) * time.Microsecond
				// In whole microseconds, as the rows are; not before it has left.
				at := (next.at + delay + service).Truncate(time.Microsecond)
				heap.Push(&pending, try{at, next.item})
			} else {
				limiter.Forget(next.item)
			}
			out = append(out, row)
			last = next.at
		}
	})
	return out
}
