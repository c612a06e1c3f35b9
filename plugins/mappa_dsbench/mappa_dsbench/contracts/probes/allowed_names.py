"""Names that a file may refer to when it is opened: a closed list, by module, each group with the reason why
none of them does more than hold data."""

_STANDARD: dict[str, str] = {
    # Values of the language: they are made of their arguments and call nothing.
    "_codecs": "encode",
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "copyreg": "__newobj__ __newobj_ex__ _reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
}

_ARRAYS: dict[str, str] = {
    # Arrays, their types, matrices and generators of numpy, scipy and pyarrow: made of numbers in the file. Not
    # `memmap`, which opens any path, nor what loads or saves.
    "numpy": (
        "bool bool_ bytes_ complex128 complex64 datetime64 dtype float16 float32 float64 int16 int32 int64 int8 "
        "longdouble ndarray object_ str_ timedelta64 uint16 uint32 uint64 uint8"
    ),
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy.dtypes": "BoolDType Float32DType Float64DType Int32DType Int64DType ObjectDType StringDType",
    "numpy.ma": "MaskedArray",
    "numpy.ma.core": "MaskedArray _mareconstruct",
    "numpy.random._mt19937": "MT19937",
    "numpy.random._pcg64": "PCG64",
    "numpy.random._pickle": "__bit_generator_ctor __generator_ctor __randomstate_ctor",
    "numpy.random.bit_generator": "SeedSequence __pyx_unpickle_SeedSequence",
    "pyarrow.lib": "_restore_array py_buffer type_for_alias",
    "scipy.interpolate._bsplines": "BSpline",
    "scipy.interpolate._interpolate": "interp1d",
    "scipy.sparse._coo": "coo_array coo_matrix",
    "scipy.sparse._csc": "csc_array csc_matrix",
    "scipy.sparse._csr": "csr_array csr_matrix",
    "scipy.sparse._dok": "dok_matrix",
    "scipy.sparse._lil": "lil_matrix",
}

_TABLES: dict[str, str] = {
    # Tables, indexes and types of pandas: made of arrays in the file. Not its readers, writers, `eval` and `query`.
    "pandas": (
        "ArrowDtype BooleanDtype Categorical CategoricalDtype CategoricalIndex DataFrame DatetimeIndex "
        "DatetimeTZDtype Float32Dtype Float64Dtype Index Int16Dtype Int32Dtype Int64Dtype Int8Dtype Interval "
        "IntervalIndex MultiIndex NA Period PeriodDtype PeriodIndex RangeIndex Series SparseDtype StringDtype "
        "Timedelta TimedeltaIndex Timestamp UInt16Dtype UInt32Dtype UInt64Dtype UInt8Dtype"
    ),
    "pandas._libs.arrays": "__pyx_unpickle_NDArrayBacked",
    "pandas._libs.internals": "_unpickle_block",
    "pandas._libs.missing": "NAType",
    "pandas._libs.sparse": "IntIndex",
    "pandas._libs.tslibs.offsets": "BusinessDay Day Hour Minute MonthBegin MonthEnd QuarterEnd Second Week YearEnd",
    "pandas._libs.tslibs.timedeltas": "_timedelta_unpickle",
    "pandas._libs.tslibs.timestamps": "_unpickle_timestamp",
    "pandas.arrays": (
        "ArrowStringArray BooleanArray DatetimeArray FloatingArray IntegerArray IntervalArray NumpyExtensionArray "
        "PeriodArray SparseArray StringArray TimedeltaArray"
    ),
    "pandas.core.frame": "DataFrame",
    "pandas.core.indexes.base": "Index _new_Index",
    "pandas.core.indexes.datetimes": "_new_DatetimeIndex",
    "pandas.core.indexes.interval": "_new_IntervalIndex",
    "pandas.core.indexes.multi": "MultiIndex",
    "pandas.core.indexes.period": "_new_PeriodIndex",
    "pandas.core.indexes.range": "RangeIndex",
    "pandas.core.internals.managers": "BlockManager SingleBlockManager",
    "pandas.core.series": "Series",
}

_ESTIMATORS: dict[str, str] = {
    # Estimators of scikit-learn, and what they hold by name: constructors keep their arguments, states are
    # attributes; what is called later comes from this list, too.
    "sklearn.calibration": "CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration",
    "sklearn.cluster._affinity_propagation": "AffinityPropagation",
    "sklearn.cluster._agglomerative": "AgglomerativeClustering FeatureAgglomeration",
    "sklearn.cluster._bicluster": "SpectralBiclustering SpectralCoclustering",
    "sklearn.cluster._birch": "Birch",
    "sklearn.cluster._bisect_k_means": "BisectingKMeans",
    "sklearn.cluster._dbscan": "DBSCAN",
    "sklearn.cluster._hdbscan.hdbscan": "HDBSCAN",
    "sklearn.cluster._kmeans": "KMeans MiniBatchKMeans",
    "sklearn.cluster._mean_shift": "MeanShift",
    "sklearn.cluster._optics": "OPTICS",
    "sklearn.cluster._spectral": "SpectralClustering",
    "sklearn.compose._column_transformer": "ColumnTransformer make_column_selector",
    "sklearn.compose._target": "TransformedTargetRegressor",
    "sklearn.covariance._elliptic_envelope": "EllipticEnvelope",
    "sklearn.covariance._empirical_covariance": "EmpiricalCovariance",
    "sklearn.covariance._graph_lasso": "GraphicalLasso GraphicalLassoCV",
    "sklearn.covariance._robust_covariance": "MinCovDet",
    "sklearn.covariance._shrunk_covariance": "LedoitWolf OAS ShrunkCovariance",
    "sklearn.cross_decomposition._pls": "CCA PLSCanonical PLSRegression PLSSVD",
    "sklearn.decomposition._dict_learning": "DictionaryLearning MiniBatchDictionaryLearning SparseCoder",
    "sklearn.decomposition._factor_analysis": "FactorAnalysis",
    "sklearn.decomposition._fastica": "FastICA",
    "sklearn.decomposition._incremental_pca": "IncrementalPCA",
    "sklearn.decomposition._kernel_pca": "KernelPCA",
    "sklearn.decomposition._lda": "LatentDirichletAllocation",
    "sklearn.decomposition._nmf": "MiniBatchNMF NMF",
    "sklearn.decomposition._pca": "PCA",
    "sklearn.decomposition._sparse_pca": "MiniBatchSparsePCA SparsePCA",
    "sklearn.decomposition._truncated_svd": "TruncatedSVD",
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier DummyRegressor",
    "sklearn.ensemble._bagging": "BaggingClassifier BaggingRegressor",
    "sklearn.ensemble._forest": (
        "ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier RandomForestRegressor RandomTreesEmbedding"
    ),
    "sklearn.ensemble._gb": "GradientBoostingClassifier GradientBoostingRegressor",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": (
        "HistGradientBoostingClassifier HistGradientBoostingRegressor"
    ),
    "sklearn.ensemble._iforest": "IsolationForest",
    "sklearn.ensemble._stacking": "StackingClassifier StackingRegressor",
    "sklearn.ensemble._voting": "VotingClassifier VotingRegressor",
    "sklearn.ensemble._weight_boosting": "AdaBoostClassifier AdaBoostRegressor",
    "sklearn.feature_extraction._dict_vectorizer": "DictVectorizer",
    "sklearn.feature_extraction._hash": "FeatureHasher",
    "sklearn.feature_extraction.image": "PatchExtractor",
    "sklearn.feature_extraction.text": "CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer",
    "sklearn.feature_selection._from_model": "SelectFromModel",
    "sklearn.feature_selection._rfe": "RFE RFECV",
    "sklearn.feature_selection._sequential": "SequentialFeatureSelector",
    "sklearn.feature_selection._univariate_selection": (
        "GenericUnivariateSelect SelectFdr SelectFpr SelectFwe SelectKBest SelectPercentile"
    ),
    "sklearn.feature_selection._variance_threshold": "VarianceThreshold",
    "sklearn.frozen._frozen": "FrozenEstimator",
    "sklearn.gaussian_process._gpc": "GaussianProcessClassifier",
    "sklearn.gaussian_process._gpr": "GaussianProcessRegressor",
    "sklearn.gaussian_process.kernels": (
        "ConstantKernel DotProduct ExpSineSquared Exponentiation Matern Product RBF RationalQuadratic Sum WhiteKernel"
    ),
    "sklearn.impute._base": "MissingIndicator SimpleImputer",
    "sklearn.impute._iterative": "IterativeImputer _ImputerTriplet",
    "sklearn.impute._knn": "KNNImputer",
    "sklearn.isotonic": "IsotonicRegression",
    "sklearn.kernel_approximation": "AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler SkewedChi2Sampler",
    "sklearn.kernel_ridge": "KernelRidge",
    "sklearn.linear_model._base": "LinearRegression",
    "sklearn.linear_model._bayes": "ARDRegression BayesianRidge",
    "sklearn.linear_model._coordinate_descent": (
        "ElasticNet ElasticNetCV Lasso LassoCV MultiTaskElasticNet MultiTaskElasticNetCV MultiTaskLasso "
        "MultiTaskLassoCV"
    ),
    "sklearn.linear_model._glm.glm": "GammaRegressor PoissonRegressor TweedieRegressor",
    "sklearn.linear_model._huber": "HuberRegressor",
    "sklearn.linear_model._least_angle": "Lars LarsCV LassoLars LassoLarsCV LassoLarsIC",
    "sklearn.linear_model._logistic": "LogisticRegression LogisticRegressionCV",
    "sklearn.linear_model._omp": "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
    "sklearn.linear_model._passive_aggressive": "PassiveAggressiveClassifier PassiveAggressiveRegressor",
    "sklearn.linear_model._perceptron": "Perceptron",
    "sklearn.linear_model._quantile": "QuantileRegressor",
    "sklearn.linear_model._ransac": "RANSACRegressor",
    "sklearn.linear_model._ridge": "Ridge RidgeCV RidgeClassifier RidgeClassifierCV",
    "sklearn.linear_model._stochastic_gradient": "SGDClassifier SGDOneClassSVM SGDRegressor",
    "sklearn.linear_model._theil_sen": "TheilSenRegressor",
    "sklearn.manifold._classical_mds": "ClassicalMDS",
    "sklearn.manifold._isomap": "Isomap",
    "sklearn.manifold._locally_linear": "LocallyLinearEmbedding",
    "sklearn.manifold._mds": "MDS",
    "sklearn.manifold._spectral_embedding": "SpectralEmbedding",
    "sklearn.manifold._t_sne": "TSNE",
    "sklearn.mixture._bayesian_mixture": "BayesianGaussianMixture",
    "sklearn.mixture._gaussian_mixture": "GaussianMixture",
    "sklearn.model_selection._classification_threshold": "FixedThresholdClassifier TunedThresholdClassifierCV",
    "sklearn.model_selection._search": "GridSearchCV RandomizedSearchCV",
    "sklearn.model_selection._search_successive_halving": "HalvingGridSearchCV HalvingRandomSearchCV",
    "sklearn.model_selection._split": (
        "GroupKFold KFold LeaveOneOut RepeatedKFold RepeatedStratifiedKFold ShuffleSplit StratifiedKFold "
        "StratifiedShuffleSplit TimeSeriesSplit"
    ),
    "sklearn.multiclass": "OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier",
    "sklearn.multioutput": "ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain",
    "sklearn.naive_bayes": "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB",
    "sklearn.neighbors._classification": "KNeighborsClassifier RadiusNeighborsClassifier",
    "sklearn.neighbors._graph": "KNeighborsTransformer RadiusNeighborsTransformer",
    "sklearn.neighbors._kde": "KernelDensity",
    "sklearn.neighbors._lof": "LocalOutlierFactor",
    "sklearn.neighbors._nca": "NeighborhoodComponentsAnalysis",
    "sklearn.neighbors._nearest_centroid": "NearestCentroid",
    "sklearn.neighbors._regression": "KNeighborsRegressor RadiusNeighborsRegressor",
    "sklearn.neighbors._unsupervised": "NearestNeighbors",
    "sklearn.neural_network._multilayer_perceptron": "MLPClassifier MLPRegressor",
    "sklearn.neural_network._rbm": "BernoulliRBM",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "sklearn.pipeline": "FeatureUnion Pipeline",
    "sklearn.preprocessing._data": (
        "Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer PowerTransformer QuantileTransformer "
        "RobustScaler StandardScaler"
    ),
    "sklearn.preprocessing._discretization": "KBinsDiscretizer",
    "sklearn.preprocessing._encoders": "OneHotEncoder OrdinalEncoder",
    "sklearn.preprocessing._function_transformer": "FunctionTransformer",
    "sklearn.preprocessing._label": "LabelBinarizer LabelEncoder MultiLabelBinarizer",
    "sklearn.preprocessing._polynomial": "PolynomialFeatures SplineTransformer",
    "sklearn.preprocessing._target_encoder": "TargetEncoder",
    "sklearn.random_projection": "GaussianRandomProjection SparseRandomProjection",
    "sklearn.semi_supervised._label_propagation": "LabelPropagation LabelSpreading",
    "sklearn.semi_supervised._self_training": "SelfTrainingClassifier",
    "sklearn.svm._classes": "LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR",
    "sklearn.tree._classes": "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier ExtraTreeRegressor",
    "sklearn.utils._bunch": "Bunch",
}

_PARTS_OF_ESTIMATORS: dict[str, str] = {
    # Compiled parts of estimators: trees, losses, distances, of numbers in the file.
    "sklearn._loss._loss": (
        "CyAbsoluteError CyExponentialLoss CyHalfBinomialLoss CyHalfGammaLoss CyHalfMultinomialLoss "
        "CyHalfPoissonLoss CyHalfSquaredError CyHalfTweedieLoss CyHalfTweedieLossIdentity CyHuberLoss "
        "CyPinballLoss"
    ),
    "sklearn._loss.link": "HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit",
    "sklearn._loss.loss": (
        "AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss HalfMultinomialLoss HalfPoissonLoss "
        "HalfSquaredError HalfTweedieLoss HalfTweedieLossIdentity HuberLoss PinballLoss"
    ),
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "sklearn.linear_model._sgd_fast": (
        "EpsilonInsensitive Hinge Huber Log ModifiedHuber SquaredEpsilonInsensitive SquaredHinge SquaredLoss"
    ),
    "sklearn.metrics._dist_metrics": (
        "ChebyshevDistance64 EuclideanDistance EuclideanDistance32 EuclideanDistance64 ManhattanDistance64 "
        "MinkowskiDistance64 newObj"
    ),
    "sklearn.metrics._scorer": "_Scorer",
    "sklearn.neighbors._ball_tree": "BallTree BallTree32 BallTree64 newObj",
    "sklearn.neighbors._kd_tree": "KDTree KDTree32 KDTree64 newObj",
    "sklearn.tree._tree": "Tree",
}

_FUNCTIONS: dict[str, str] = {
    # Functions that transform or compare arrays: they return numbers, and read and write nothing else. No further
    # function of scipy and scikit-learn, of which some run `exec`.
    "numpy": (
        "absolute add cbrt ceil cos degrees divide exp exp2 expm1 fabs floor log log10 log1p log2 maximum mean "
        "median minimum multiply negative power radians reciprocal rint sign sin sqrt square subtract tan tanh "
        "trunc"
    ),
    "scipy._lib.array_api_compat.numpy._aliases": "asarray",
    "scipy.special._ufuncs": "boxcox boxcox1p expit inv_boxcox inv_boxcox1p logit",
    "sklearn.feature_selection._mutual_info": "mutual_info_classif mutual_info_regression",
    "sklearn.feature_selection._univariate_selection": "chi2 f_classif f_regression",
    "sklearn.metrics._classification": (
        "accuracy_score balanced_accuracy_score brier_score_loss cohen_kappa_score f1_score fbeta_score "
        "jaccard_score log_loss matthews_corrcoef precision_score recall_score"
    ),
    "sklearn.metrics._ranking": "average_precision_score roc_auc_score",
    "sklearn.metrics._regression": (
        "explained_variance_score mean_absolute_error mean_absolute_percentage_error mean_squared_error "
        "mean_squared_log_error median_absolute_error r2_score root_mean_squared_error root_mean_squared_log_error"
    ),
}


ALLOWED_NAMES: dict[str, frozenset[str]] = {}
for _group in (_STANDARD, _ARRAYS, _TABLES, _ESTIMATORS, _PARTS_OF_ESTIMATORS, _FUNCTIONS):
    for _module, _names in _group.items():
        ALLOWED_NAMES[_module] = ALLOWED_NAMES.get(_module, frozenset()) | frozenset(_names.split())
# As the oldest formats of pickle call them.
ALLOWED_NAMES["__builtin__"], ALLOWED_NAMES["copy_reg"] = ALLOWED_NAMES["builtins"], ALLOWED_NAMES["copyreg"]
