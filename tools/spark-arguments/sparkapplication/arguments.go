// Lies beside the Spark operator's own files of this package while the program is built
// (tools/build-spark-arguments.sh): the function that makes the arguments is not exported.
package sparkapplication

import "github.com/kubeflow/spark-operator/v2/api/v1beta2"

// Arguments are those with which the Spark operator would run spark-submit.
func Arguments(app *v1beta2.SparkApplication) ([]string, error) {
	return buildSparkSubmitArgs(app)
}
