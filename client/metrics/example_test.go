package metrics_test

import (
	"fmt"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Two watchers in one process have a label each.
func Example() {
	reg := prometheus.NewRegistry()
	for _, cluster := range []string{"east", "west"} {
		w, err := client.NewWatcher(client.Options{Addresses: []string{"http://" + cluster + ".example:7400"}})
		if err != nil {
			fmt.Println(err)
			return
		}
		labels := prometheus.Labels{"cluster": cluster}
		if err := prometheus.WrapRegistererWith(labels, reg).Register(metrics.New(w)); err != nil {
			fmt.Println(err)
			return
		}
	}
	families, err := reg.Gather()
	fmt.Println(families[0].GetName(), len(families[0].GetMetric()), err)
	// Output: loadplane_client_connected 2 <nil>
}
