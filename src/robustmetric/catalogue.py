"""The only name -> constructor dictionary. Paths, not objects: naming a member imports nothing until it is built.

A defence, attack, data set, loss or metric is one file and one line here; outside the package, a recipe names it by its
dotted path instead. Names are unique over all kinds, so a recipe needs no more than `name:`.
"""

CATALOGUE: dict[str, dict[str, str]] = {
    "data": {
        "digits": "robustmetric.data.digits.Digits",
        "digits_table": "robustmetric.data.digits.DigitsTable",
        "mnist": "robustmetric.data.mnist.Mnist",
        "fashion": "robustmetric.data.mnist.Fashion",
        "cifar10": "robustmetric.data.cifar.Cifar10",
        "cub": "robustmetric.data.cub.Cub",
        "cars": "robustmetric.data.cars.Cars",
        "sop": "robustmetric.data.sop.Sop",
        "inshop": "robustmetric.data.inshop.InShop",
        "tabular": "robustmetric.data.tabular.Tabular",
        "folder": "robustmetric.data.folder.Folder",
        "manifest": "robustmetric.data.manifest.Manifest",
    },
    "transforms": {
        "identity": "robustmetric.data.transforms.Identity",
        "centre_crop": "robustmetric.data.transforms.CentreCrop",
        "random_crop": "robustmetric.data.transforms.RandomCrop",
        "random_resized_crop": "robustmetric.data.transforms.RandomResizedCrop",
        "aspect_centre_crop": "robustmetric.data.transforms.AspectCentreCrop",
    },
    "samplers": {
        "pairs": "robustmetric.data.sampler.Pairs",
        "balanced": "robustmetric.data.sampler.Balanced",
        "shuffled": "robustmetric.data.sampler.Shuffled",
    },
    "models": {
        "encoder": "robustmetric.models.encoder.Encoder",
        "backbone": "robustmetric.models.backbone.encoder",
        "bn_inception": "robustmetric.models.bn_inception.BNInception",
        "convnet": "robustmetric.models.convnet.ConvNet",
        "ensemble": "robustmetric.models.ensemble.Ensemble",
        "mahalanobis": "robustmetric.models.mahalanobis.Mahalanobis",
        "smoothed": "robustmetric.models.smoothed.Smoothed",
    },
    "losses": {
        "triplet": "robustmetric.losses.triplet.Triplet",
        "proxy_anchor": "robustmetric.losses.proxy_anchor.ProxyAnchor",
        "pytorch_metric_learning": "robustmetric.losses.adapter.PytorchMetricLearning",
    },
    "miners": {
        "random": "robustmetric.losses.mining.Random",
        "semihard": "robustmetric.losses.mining.SemiHard",
        "softhard": "robustmetric.losses.mining.SoftHard",
        "distance_weighted": "robustmetric.losses.mining.DistanceWeighted",
        "hardest": "robustmetric.losses.mining.Hardest",
    },
    "perturbations": {
        "ball": "robustmetric.perturb.ball.Ball",
        "pgd": "robustmetric.perturb.pgd.PGD",
        "nes": "robustmetric.perturb.gradient_free.NES",
        "square": "robustmetric.perturb.gradient_free.Square",
    },
    "attacks": {
        "embedding_shift": "robustmetric.attacks.embedding_shift.EmbeddingShift",
        "candidate": "robustmetric.attacks.candidate.Candidate",
        "query": "robustmetric.attacks.query.Query",
        "targeted_mismatch": "robustmetric.attacks.mismatch.TargetedMismatch",
        "learn_to_misrank": "robustmetric.attacks.misrank.LearnToMisrank",
        "top1_misranking": "robustmetric.attacks.top1.TopOneMisranking",
        "top1_translocation": "robustmetric.attacks.top1.TopOneTranslocation",
        "order": "robustmetric.attacks.order.Order",
        "spqa": "robustmetric.attacks.semantics.SemanticsPreservingQuery",
        "spfoa": "robustmetric.attacks.semantics.SemanticsPreservingOrder",
    },
    "black_box": {
        "rank_only": "robustmetric.attacks.rank_only.RankOnly",
        "transfer": "robustmetric.attacks.transfer.Transfer",
    },
    "defences": {
        "plain": "robustmetric.defences.plain.Plain",
        "noise": "robustmetric.defences.noise.Noise",
        "madry": "robustmetric.defences.madry.Madry",
        "est": "robustmetric.defences.est.EmbeddingShiftedTriplet",
        "rest": "robustmetric.defences.rest.RevisedShiftedTriplet",
        "ses": "robustmetric.defences.ses.SuppressedShift",
        "act": "robustmetric.defences.act.AntiCollapseTriplet",
        "minmax": "robustmetric.defences.minmax.MinMax",
        "hm": "robustmetric.defences.hardness.HardnessManipulation",
        "free_hm": "robustmetric.defences.free.FreeHardness",
        "ca_tride": "robustmetric.defences.ca_tride.CollapseAwareTriplet",
    },
    "destinations": {
        "mined": "robustmetric.defences.destinations.Mined",
        "fixed": "robustmetric.defences.destinations.Fixed",
        "gradual": "robustmetric.defences.destinations.Gradual",
        "boosted": "robustmetric.defences.destinations.Boosted",
        "between": "robustmetric.defences.destinations.Between",
    },
    "structures": {
        "ics": "robustmetric.defences.structure.Structure",
    },
    "learners": {
        "euclidean": "robustmetric.learn.Euclidean",
        "nca": "robustmetric.learn.NCA",
        "lmnn": "robustmetric.learn.LMNN",
        "itml": "robustmetric.learn.ITML",
        "lfda": "robustmetric.learn.LFDA",
        "arml": "robustmetric.learn.ARML",
        "perturbation_loss": "robustmetric.learn.PerturbationLoss",
        "pruning": "robustmetric.learn.AdversarialPruning",
        "network": "robustmetric.learn.Network",
    },
    "certificates": {
        "knn_certificate": "robustmetric.certify.nearest.KNearest",
        "crown": "robustmetric.certify.crown.Crown",
        "smoothing": "robustmetric.certify.smoothing.Smoothing",
        "smoothed_retrieval": "robustmetric.certify.smoothed_retrieval.SmoothedRetrieval",
    },
    "optimisers": {
        "adam": "robustmetric.optimise.adam",
        "adamw": "robustmetric.optimise.adamw",
        "sgd": "robustmetric.optimise.sgd",
        "constant": "robustmetric.optimise.Constant",
        "milestones": "robustmetric.optimise.Milestones",
        "cosine": "robustmetric.optimise.Cosine",
    },
}

NAMES: dict[str, str] = {name: path for members in CATALOGUE.values() for name, path in members.items()}
