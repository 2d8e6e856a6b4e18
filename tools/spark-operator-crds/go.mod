module tandem.dev/tools/spark-operator-crds

go 1.25.0

require github.com/kubeflow/spark-operator/v2 v2.5.1
