package golden

import (
	"testing"
	"testing/synctest"

	"github.com/crossplane/crossplane-runtime/v2/pkg/ratelimiter"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// limits is a rate per second and a burst.
type limits struct {
	Rate  float64 `json:"rate"`
	Burst int     `json:"burst"`
}

// derived is what Crossplane derives from one number.
type derived struct {
	MaxReconcileRate int    `json:"max_reconcile_rate"`
	Client           limits `json:"client"`
	Global           limits `json:"global"`
}

// limits.json: rates that are derived from others or built in.
func TestLimits(t *testing.T) {
	var crossplane rows
	for _, rps := range []int{1, 2, 3, 5, 10, 20, 30, 50, 100, 250, 1000} {
		config := ratelimiter.LimitRESTConfig(&rest.Config{}, rps)
		global := ratelimiter.NewGlobal(rps)
		crossplane = append(crossplane, derived{
			rps,
			limits{float64(config.QPS), config.Burst},
			limits{float64(global.Limit()), global.Burst()},
		})
	}

	var controller []int64
	perObject := ratelimiter.NewController()
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "vpc"}}
	for range 12 {
		controller = append(controller, perObject.When(request).Nanoseconds())
	}
	perObject.Forget(request)
	controller = append(controller, perObject.When(request).Nanoseconds())

	write(t, "limits",
		section{"crossplane", crossplane},
		// NewController: 12 failures, Forget, one failure; ns.
		section{"crossplane_controller", controller},
		// client-go's defaults for a rest.Config without numbers.
		section{"client_go", limits{float64(rest.DefaultQPS), rest.DefaultBurst}},
		section{"controller_bucket", controllerBucket(t)},
	)
}

// controllerBucket finds the bucket inside client-go's default by emptying it: an item's first delay is the exponential part, so
// the first call that waits longer is the first one past the burst.
func controllerBucket(t *testing.T) (found limits) {
	synctest.Test(t, func(*testing.T) {
		limiter := workqueue.DefaultTypedControllerRateLimiter[int]()
		free := limiter.When(0)
		for item := 1; found.Burst == 0; item++ {
			if delay := limiter.When(item); delay > free {
				found = limits{1 / delay.Seconds(), item}
			}
		}
	})
	return found
}
