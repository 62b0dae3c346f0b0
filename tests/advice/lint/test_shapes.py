# SPDX-License-Identifier: Apache-2.0
"""Objects without pod templates: findings are at the place of the document that has the value, and fixes change it."""

from __future__ import annotations

import pytest

from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.fix import fixed
from dovetail.advice.lint.rule import Facts
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import documents
from tests.advice.lint.linted import facts, findings

MODEL = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100}
    model:
      modelFormat: {name: huggingface}
      resources: {requests: {nvidia.com/gpu: 2}}
    workerSpec:
      tensorParallelSize: 2
      containers: [{name: worker-container, resources: {requests: {nvidia.com/gpu: 3}}}]
"""
LLM = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: llama}
spec:
  template: {containers: [{name: main, resources: {limits: {nvidia.com/gpus: 1}}}]}
  prefill:
    worker: {containers: [{name: main, resources: {limits: {nvidia.com/gpus: 1}}}]}
"""
WORKFLOW = """\
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: train}
spec:
  tolerations: [{key: nvidia.com/gpu, operator: Exist}]
  volumes: [{name: shm, emptyDir: {}}]
  templates:
  - name: all
    steps: [[{name: one, template: one}]]
  - name: one
    script:
      image: a:1
      source: print()
      resources: {limits: {nvidia.com/gpu: "2"}}
      volumeMounts: [{name: shm, mountPath: /dev/shm}]
"""
TASK = """\
apiVersion: tekton.dev/v1
kind: PipelineRun
metadata: {name: train}
spec:
  taskRunTemplate: {podTemplate: {tolerations: [{key: nvidia.com/gpu, operator: Exist}]}}
  pipelineSpec:
    tasks:
    - name: train
      taskSpec:
        steps:
        - {name: clone, image: "git:1"}
        - {name: train, image: "a:1", computeResources: {limits: {nvidia.com/gpu: half}}}
"""
DYNAMO = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: llama}
spec:
  services:
    Frontend: {replicas: 1, extraPodSpec: {mainContainer: {image: "a:1"}}}
    Worker:
      resources: {limits: {gpu: "2"}, requests: {gpu: "1"}}
      extraPodSpec:
        nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100}
        mainContainer: {image: "a:1", args: [--tensor-parallel-size=4]}
"""
COMPONENTS = """\
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: llama}
spec:
  components:
  - {name: Frontend, podTemplate: {spec: {containers: [{name: main, image: "a:1"}]}}}
  - name: decode
    podTemplate: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpus: 1}}}]}}
"""
OTHER_GPUS = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: llama}
spec:
  services:
    Intel: {resources: {limits: {gpu: half, gpuType: gpu.intel.com/xe}}}
    Variables:
      resources: {limits: {gpu: "1"}}
      envs: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
"""
NIM_PIPELINE = """\
apiVersion: apps.nvidia.com/v1alpha1
kind: NIMPipeline
metadata: {name: rag}
spec:
  services:
  - {name: embed, enabled: false, spec: {resources: {limits: {nvidia.com/gpus: 1}}}}
  - {name: llama, enabled: true, spec: {resources: {limits: {nvidia.com/gpus: 1}}}}
  - name: rerank
    spec:
      annotations: {dovetail.dev/startup-time: 20m}
      resources: {limits: {nvidia.com/gpu: 1}}
      startupProbe: {probe: {httpGet: {path: /v1/health/ready, port: api}, failureThreshold: 180}}
"""
NIM = """\
apiVersion: apps.nvidia.com/v1alpha1
kind: NIMService
metadata: {name: llama}
spec:
  image: {repository: nvcr.io/nim/meta/llama, tag: "1"}
  resources: {limits: {nvidia.com/gpu: 0}}
"""
TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: train}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpus: 4}}}
  podTemplateOverrides:
  - targetJobs: [{name: dataset-initializer}]
    spec: {tolerations: [{key: a, operator: Wrong}]}
  - targetJobs: [{name: node}]
    spec: {tolerations: [{key: nvidia.com/gpu, operator: Exist}]}
"""
PATCHED = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: train}
spec:
  trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}
  runtimePatches:
  - manager: example.com/me
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template: {spec: {template: {spec: {tolerations: [{key: nvidia.com/gpu, operator: Exist}]}}}}
"""
ROLES = """\
apiVersion: workloads.x-k8s.io/v1alpha2
kind: RoleBasedGroup
metadata: {name: llama}
spec:
  roleTemplates:
  - name: base
    template:
      spec:
        containers:
        - {name: serve, image: "a:latest", env: [{name: NCCL_DEBUGG, value: INFO}, {name: NCCL_DEBUG, value: INFO}]}
        - {name: beside, image: "b:1"}
  roles:
  - name: prefill
    standalonePattern:
      templateRef: {name: base, patch: {spec: {containers: [{name: serve, resources: {limits: {nvidia.com/gpu: 1}}}]}}}
  - name: decode
    leaderWorkerPattern:
      size: 2
      templateRef:
        name: base
        patch:
          spec:
            containers:
            - name: serve
              args: [serve, m, --tensor-parallel-size=4]
              env: [{name: NCCL_DEBUGG, value: WARN}]
              resources: {limits: {nvidia.com/gpu: 1}}
      workerTemplatePatch: {spec: {containers: [{name: serve, resources: {limits: {nvidia.com/gpu: 0}}}]}}
  - name: other
    templateRef: {name: elsewhere}
    templatePatch: {spec: {containers: [{name: serve, resources: {limits: {nvidia.com/gpus: 1}}}]}}
  - name: parts
    customComponentsPattern:
      components:
      - {size: 1, template: {spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpus: 1}}}]}}}
"""
SERVING = """\
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {name: llama}
spec:
  schedulerName: volcanoo
  template:
    roles:
    - name: decode
      entryTemplate:
        spec: {containers: [{name: a, args: [serve, --tp-size=4], resources: {limits: {nvidia.com/gpu: 2}}}]}
      workerReplicas: 1
      workerTemplate:
        spec: {containers: [{name: a, args: [serve, --tp-size=5], resources: {limits: {nvidia.com/gpu: 2}}}]}
    - name: idle
      entryTemplate: {spec: {containers: [{name: a, image: "a:1"}]}}
      workerReplicas: 0
      workerTemplate: {spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpus: 2}}}]}}
"""
BOOSTER = """\
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelBooster
metadata: {name: llama}
spec:
  backend:
    type: vLLM
    env: [{name: CUDA_VISIBLE_DEVICES, value: "1"}]
    workers:
    - {type: server, image: "a:1", pods: 1, config: {tensor-parallel-size: 2}, resources: {limits: {nvidia.com/gpu: 1}}}
"""
CLIQUES = """\
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {name: llama}
spec:
  template:
    podCliqueScalingGroups: [{name: decode, cliqueNames: [leader, worker]}]
    cliques:
    - name: leader
      spec:
        replicas: 1
        podSpec: {containers: [{name: a, args: [--tp-size=8], resources: {limits: {nvidia.com/gpu: 2}}}]}
    - name: worker
      spec:
        replicas: 2
        podSpec: {containers: [{name: a, args: [--tp-size=6], resources: {limits: {nvidia.com/gpu: 2}}}]}
    - name: alone
      spec:
        replicas: 2
        podSpec: {containers: [{name: a, args: [--tp-size=4], resources: {limits: {nvidia.com/gpu: 2}}}]}
"""
WRAPPED = """\
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata: {name: train}
spec:
  components:
  - template:
      apiVersion: batch/v1
      kind: Job
      metadata: {name: train}
      spec:
        ttlSecondsAfterFinished: 0
        template:
          spec: {restartPolicy: Never, containers: [{name: a, image: "a:1", resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            MODEL,
            {
                "G34 spec.predictor.nodeSelector[nvidia.com/gpu.product] 6",
                "G01 spec.predictor.model.resources.requests[nvidia.com/gpu] 9",
                "G01 spec.predictor.workerSpec.containers[0].resources.requests[nvidia.com/gpu] 12",
            },
        ),
        (
            LLM,
            {
                "G04 spec.template.containers[0].resources.limits[nvidia.com/gpus] 5",
                "G04 spec.prefill.worker.containers[0].resources.limits[nvidia.com/gpus] 7",
            },
        ),
        (
            WORKFLOW,
            {"G09 spec.tolerations[0].operator 5", "G20 spec.volumes[0].emptyDir 6"},
        ),
        (
            TASK,
            {
                "G09 spec.taskRunTemplate.podTemplate.tolerations[0].operator 5",
                "G03 spec.pipelineSpec.tasks[0].taskSpec.steps[1].computeResources.limits[nvidia.com/gpu] 12",
            },
        ),
        (
            DYNAMO,
            {
                "G02 spec.services.Worker.resources.requests.gpu 8",
                "G34 spec.services.Worker.extraPodSpec.nodeSelector[nvidia.com/gpu.product] 10",
                "G48 spec.services.Worker.resources.limits.gpu 8",
            },
        ),
        (COMPONENTS, {"G04 spec.components[1].podTemplate.spec.containers[0].resources.limits[nvidia.com/gpus] 8"}),
        (OTHER_GPUS, {"G55 spec.services.Intel.resources.limits.gpu 6", "G25 spec.services.Variables.envs[0].value 9"}),
        (NIM_PIPELINE, {"G04 spec.services[1].spec.resources.limits[nvidia.com/gpus] 7"}),
        (NIM, {"G03 spec.resources.limits[nvidia.com/gpu] 6"}),
        (
            TRAIN,
            {
                "G04 spec.trainer.resourcesPerNode.limits[nvidia.com/gpus] 6",
                "G09 spec.podTemplateOverrides[1].spec.tolerations[0].operator 11",
            },
        ),
        (
            PATCHED,
            {
                "G09 spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template"
                ".spec.tolerations[0].operator 13"
            },
        ),
        (
            ROLES,
            {
                "G32 spec.roleTemplates[0].template.spec.containers[0].image 10",
                "G21 spec.roleTemplates[0].template.spec.containers[0].env[0].name 10",
                "G21 spec.roles[1].leaderWorkerPattern.templateRef.patch.spec.containers[0].env[0].name 26",
                "G48 spec.roles[1].leaderWorkerPattern.templateRef.patch.spec.containers[0].resources.limits"
                "[nvidia.com/gpu] 27",
                "G03 spec.roles[1].leaderWorkerPattern.workerTemplatePatch.spec.containers[0].resources.limits"
                "[nvidia.com/gpu] 28",
                "G04 spec.roles[2].templatePatch.spec.containers[0].resources.limits[nvidia.com/gpus] 31",
                "G04 spec.roles[3].customComponentsPattern.components[0].template.spec.containers[0].resources.limits"
                "[nvidia.com/gpus] 35",
            },
        ),
        (
            SERVING,
            {
                "G13 spec.schedulerName 5",
                "G20 spec.template.roles[0].entryTemplate.spec.containers[0] 10",
                "G20 spec.template.roles[0].workerTemplate.spec.containers[0] 13",
                "G48 spec.template.roles[0].workerTemplate.spec.containers[0].resources.limits[nvidia.com/gpu] 13",
            },
        ),
        (
            BOOSTER,
            {
                "G25 spec.backend.env[0].value 7",
                "G48 spec.backend.workers[0].resources.limits[nvidia.com/gpu] 9",
            },
        ),
        (
            CLIQUES,
            {
                "G48 spec.template.cliques[0].spec.podSpec.containers[0].resources.limits[nvidia.com/gpu] 11",
                "G48 spec.template.cliques[2].spec.podSpec.containers[0].resources.limits[nvidia.com/gpu] 19",
            },
        ),
        (WRAPPED, {"G31 spec.components[0].template.spec.ttlSecondsAfterFinished 11"}),
    ],
)
@pytest.mark.slow
def test_findings_are_at_their_places(text: str, expected: set[str]) -> None:
    found = [one for one in findings(text) if one.rule != "G44"]
    assert {f"{one.rule} {one.path} {one.line}" for one in found} == expected
    for rule in RULES:
        fixable = {one.path for one in findings(text, rule.id) if one.fixable}
        after = "".join(fixed(each, facts(text), [rule]).text for each in documents("test.yaml", text))
        assert not fixable & {one.path for one in findings(after, rule.id)}, after


IN_A_WORKFLOW = """\
# A workflow.
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: train}
spec:
  workflowSpec:
    templates:
    - name: train
      resource:
        action: create
        manifest: |
          apiVersion: batch/v1
          kind: Job
          metadata: {generateName: train-}
          spec:
            template:
              spec:
                restartPolicy: Never
                containers:
                - name: a
                  resources:
                    limits: {nvidia.com/gpu: 2}
                    requests: {nvidia.com/gpu: 3}
    - resource: {action: create, manifest: "{{inputs.parameters.manifest}}"}
    - resource: {action: create, manifest: 3}
"""


def test_a_manifest_in_a_workflow_is_an_object_of_its_own_with_its_lines() -> None:
    text = f"a: 1\n---\n{IN_A_WORKFLOW}"
    _, document = documents("a.yaml", text)
    found = [one for one in lint([document], Facts(), RULES) if one.rule == "G02"]
    assert [(one.object, one.line, one.column, one.edits, one.patch) for one in found] == [
        ("Job train-", 25, 32, (), ())
    ]
    line = text.splitlines()[found[0].line - 1]
    assert line[found[0].column - 1 :].startswith("nvidia.com/gpu: 3")
    assert fixed(document, Facts(), RULES).text == document.text
